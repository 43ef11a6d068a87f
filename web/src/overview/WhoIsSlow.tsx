import { useMemo } from "react";
import type { Lane, Step, StepTime } from "../api";
import { Panel } from "../components/Panel";
import { ViewLink } from "../components/ViewLink";
import { colourOfName } from "../colours";
import { formatDuration, formatNumber, formatShare, shorten } from "../units";
import { idleByRole, median, stragglers } from "./stepPhases";

const RECENT_STEPS = 15;

interface Props {
  lanes: readonly Lane[];
  times: readonly StepTime[];
  steps: readonly Step[];
}

/** Processes that take longer than their peers, and the slowest of the recent steps. */
export function WhoIsSlow({ lanes, times, steps }: Props) {
  const recent = steps.slice(-RECENT_STEPS);
  const since = recent[0]?.step ?? 0;
  const found = useMemo(
    () =>
      stragglers(
        times.filter((time) => time.step >= since),
        lanes,
      ),
    [times, lanes, since],
  );
  const slow = useMemo(() => slowSteps(steps), [steps]);
  const idle = useMemo(() => idleByRole(times, lanes, steps.slice(-RECENT_STEPS)), [times, lanes, steps]);
  const window = { from: (recent[0]?.start_ns ?? 0) / 1e9, to: (recent.at(-1)?.end_ns ?? 0) / 1e9 };
  return (
    <Panel className="span-4" title="Who is slow, who waits" actions={<span>last {recent.length} steps</span>}>
      {found.length === 0 && slow.length === 0 && (
        <p className="muted">Nobody: processes of a role take about as long as each other, and no step stands out.</p>
      )}
      {found.slice(0, 6).map((one) => (
        <div key={`${one.processId} ${one.name}`} className="bar-line">
          <i
            className="bar"
            style={{
              width: `${Math.min(100, (100 * one.usualNs) / one.averageNs)}%`,
              background: colourOfName(one.name),
            }}
          />
          <span>
            <ViewLink
              view="timeline"
              state={{ ...window, search: one.name }}
              title={`${one.processId}: show on the timeline`}
            >
              <strong>
                {shorten(one.role, 20)} {one.rank ?? ""}
              </strong>{" "}
              {shorten(one.name, 30)}
            </ViewLink>
          </span>
          <span className="muted">
            {formatDuration(one.averageNs)} vs {formatDuration(one.usualNs)}
          </span>
          <b className="bad">{formatNumber(one.ratio)} ×</b>
        </div>
      ))}
      {slow.length > 0 && <h3 className="sub-title">Slow steps</h3>}
      {slow.map((one) => (
        <div key={one.step} className="bar-line">
          <span>
            <ViewLink view="timeline" state={{ from: one.start / 1e9, to: one.end / 1e9 }}>
              step {one.step}
            </ViewLink>
          </span>
          <span className="muted">{formatDuration(one.end - one.start)}</span>
          <b className="warning">{formatNumber(one.ratio)} ×</b>
        </div>
      ))}
      {idle.length > 0 && <h3 className="sub-title">Idle share by role</h3>}
      {idle.slice(0, 6).map((one) => (
        <div
          key={one.role}
          className="bar-line"
          title={`${one.lanes} lanes; the idlest is ${one.worst.lane.lane ?? one.worst.lane.process_id} with ${formatShare(one.worst.share)}`}
        >
          <i className="bar is-idle" style={{ width: `${one.share * 100}%` }} />
          <span>{shorten(one.role === "" ? "no role" : one.role, 30)}</span>
          <span className="muted">
            {one.lanes} {one.lanes === 1 ? "lane" : "lanes"}
          </span>
          <b>{formatShare(one.share)}</b>
        </div>
      ))}
    </Panel>
  );
}

function slowSteps(steps: readonly Step[]): { step: number; start: number; end: number; ratio: number }[] {
  const finished = steps
    .slice(0, -1)
    .map((step, place) => ({ step: step.step, start: step.start_ns, end: steps[place + 1]!.start_ns }));
  if (finished.length < 6) return [];
  const usual = median(finished.map((one) => one.end - one.start));
  return finished
    .map((one) => ({ ...one, ratio: (one.end - one.start) / usual }))
    .filter((one) => one.ratio >= 1.6)
    .sort((one, other) => other.ratio - one.ratio)
    .slice(0, 4);
}
