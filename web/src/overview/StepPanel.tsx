import { useMemo } from "react";
import { type Step, api } from "../api";
import { Chart } from "../components/Chart";
import { EmptyState } from "../components/EmptyState";
import { Loading } from "../components/Loading";
import { NumberField } from "../components/NumberField";
import { Panel } from "../components/Panel";
import { Choice } from "../components/Select";
import { colorOfName } from "../colors";
import { formatSeconds, formatShare, shorten } from "../units";
import { useUrlState } from "../url";
import { useQuery } from "../useQuery";
import { useStepTimes } from "./StepStrip";
import { type Inside, barColor, barsOf, insideOf, wholeSteps } from "./stepTimes";
import { sumOf } from "../statistics";

interface Props {
  run: string;
  steps: readonly Step[];
  /** The steps are loading. */
  isAwaited: boolean;
  /** The window that all views share, on the axis of steps; null for none. */
  band: readonly [number, number] | null;
  /** Called with the selected steps. */
  onSteps: (first: number, last: number) => void;
}

/** The time of each finished step by phase, on an average lane of a role, and what ran inside the phases. */
export function StepPanel({ run, steps, isAwaited, band, onSteps }: Props) {
  const [role, setRole] = useUrlState("role", "");
  const first = steps[0]?.step;
  const last = steps.at(-1)?.step;
  const { data, isLoading } = useQuery(
    `breakdown ${run} ${role} ${band === null ? "latest" : `${first} ${last}`}`,
    (signal) => api.stepBreakdown({ run, first: first!, last: last!, role: role === "" ? undefined : role }, signal),
    { enabled: first !== undefined && last !== undefined, everyMs: 2000 },
  );
  const { x, series, sums } = useMemo(() => {
    const bars = barsOf(data ?? { role: "", roles: [], steps: [] });
    return {
      x: bars.steps,
      series: bars.phases.map(({ name, seconds }) => ({ label: name, values: seconds, color: barColor(name) })),
      sums: bars.phases.map(({ seconds }) => sumOf(seconds)),
    };
  }, [data]);
  const whole = sumOf(sums);
  const largest = series[0];
  const inside = useMemo(() => (data === undefined ? [] : insideOf(data)), [data]);
  const times = useStepTimes(steps);
  const roles = data?.roles ?? [];
  return (
    <Panel
      className="span-8"
      title="Where each step's time goes"
      value={
        largest === undefined || whole === 0
          ? undefined
          : `${formatShare(sums[0]! / whole)} ${shorten(largest.label, 40)}`
      }
      actions={
        <>
          <StepRange steps={steps} band={band} onSteps={onSteps} />
          {roles.length > 1 && (
            <Choice
              label="Role"
              value={data?.role ?? role}
              onChange={setRole}
              options={roles.map((one) => ({ value: one, label: shorten(one === "" ? "no role" : one, 20) }))}
            />
          )}
        </>
      }
    >
      {x.length > 0 ? (
        <>
          <Chart
            label="Step time by phase"
            kind="stacked"
            xKind="step"
            x={x}
            series={series}
            format={formatSeconds}
            height={210}
            syncKey="steps"
            band={band}
            onSelect={(from, to) => onSteps(...wholeSteps(from, to))}
            onPick={(step) => onSteps(step, step)}
          />
          {inside.slice(0, 3).map((one) => (
            <InsideLine key={one.name} inside={one} />
          ))}
        </>
      ) : times.x.length > 0 && !isLoading ? (
        <StepTimes {...times} onPick={(step) => onSteps(step, step)} />
      ) : isAwaited || (isLoading && first !== undefined) ? (
        <Loading />
      ) : (
        <EmptyState
          title="No finished step yet"
          text="Record steps and states to see where each step's time goes."
          code={'with insight.step(7):\n    with insight.trace_state("rollout"):\n        ...'}
        />
      )}
    </Panel>
  );
}

/** Step times, for steps without states. */
function StepTimes({ x, series, onPick }: ReturnType<typeof useStepTimes> & { onPick: (step: number) => void }) {
  return (
    <>
      <Chart
        label="Step time"
        xKind="step"
        x={x}
        series={series}
        format={formatSeconds}
        height={210}
        syncKey="steps"
        onPick={onPick}
      />
      <p className="muted">
        These steps have no states. Record them with insight.trace_state to see where the time goes.
      </p>
    </>
  );
}

/** The spans inside a phase; they may be concurrent, so they are not stacked. */
function InsideLine({ inside }: { inside: Inside }) {
  return (
    <p className="inside-line">
      <i className="swatch" style={{ background: colorOfName(inside.name) }} /> {shorten(inside.name, 30)}{" "}
      <b>{formatSeconds(inside.seconds)}</b> <span className="muted">inside:</span>{" "}
      {inside.parts.slice(0, 5).map((part) => (
        <span key={part.name}>
          <i className="swatch" style={{ background: colorOfName(part.name) }} /> {shorten(part.name, 30)}{" "}
          <b>{formatSeconds(part.seconds)}</b>{" "}
        </span>
      ))}
    </p>
  );
}

/** Selects the previous, next, or an entered step. */
function StepRange({ steps, band, onSteps }: Pick<Props, "steps" | "band" | "onSteps">) {
  const last = steps.at(-1)?.step;
  if (last === undefined) return null;
  const shown = band === null ? last : Math.floor(band[1]);
  const go = (step: number) => onSteps(Math.max(0, step), Math.max(0, step));
  return (
    <span className="toolbar">
      <button type="button" className="icon-button" onClick={() => go(shown - 1)} aria-label="Previous step">
        ‹
      </button>
      <NumberField label="Step to show" value={shown} onChange={go} />
      <button type="button" className="icon-button" onClick={() => go(shown + 1)} aria-label="Next step">
        ›
      </button>
    </span>
  );
}
