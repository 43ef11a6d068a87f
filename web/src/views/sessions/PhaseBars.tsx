import type { Session } from "../../api";
import { colorOfName } from "../../colors";
import { formatClock, formatSeconds } from "../../units";
import { type GanttAxis, extentOf, phasesOf, ticks } from "./gantt";

interface Props {
  session: Session;
  axis: GanttAxis;
  /** The ends of the axis in seconds. */
  range: readonly [number, number];
  now: number;
}

/** A session's phases on one line: waiting is pale, enclosing phases are behind others, open ends are striped. */
export function PhaseBars({ session, axis, range, now }: Props) {
  const [start, end] = extentOf(session, now);
  const zero = axis === "submit" ? start : 0;
  const place = (from: number, to: number) => {
    const span = range[1] - range[0] || 1;
    return { left: `${((from - zero - range[0]) / span) * 100}%`, width: `max(1.5px, ${((to - from) / span) * 100}%)` };
  };
  return (
    <div className="phase-bars">
      <i className="is-whole" style={place(start, end)} />
      {phasesOf(session).map((phase, index) => (
        <i
          key={index}
          className={[
            phase.name === "execution" ? "is-behind" : "",
            phase.end === null ? "is-open" : "",
            phase.outcome === "error" ? "is-error" : "",
          ].join(" ")}
          style={{ ...place(phase.start, phase.end ?? now), backgroundColor: colorOfName(phase.name) }}
          title={`${phase.name}: ${phase.end === null ? `open for ${formatSeconds(now - phase.start)}` : formatSeconds(phase.end - phase.start)}${phase.outcome === "ok" ? "" : ` (${phase.outcome})`}`}
        />
      ))}
    </div>
  );
}

/** The first and the last: there is no room for more. */
function ends(values: readonly number[]): readonly number[] {
  return values.length < 3 ? values : [values[0]!, values.at(-1)!];
}

/** The column header: its scale. */
export function PhaseAxis({ axis, range }: { axis: GanttAxis; range: readonly [number, number] }) {
  const span = range[1] - range[0] || 1;
  return (
    <div className="phase-axis" aria-hidden="true">
      {ends(ticks(range[0], range[1], 2)).map((tick) => (
        <span
          key={tick}
          className={tick - range[0] > span / 2 ? "is-before" : ""}
          style={{ left: `${((tick - range[0]) / span) * 100}%` }}
        >
          {axis === "submit" ? formatSeconds(tick) : formatClock(tick * 1e9, span < 5)}
        </span>
      ))}
    </div>
  );
}
