import { useMemo } from "react";
import type { Lane, Step, StepPace } from "../api";
import { Loading } from "../components/Loading";
import { Panel } from "../components/Panel";
import { ViewLink } from "../components/ViewLink";
import { severityClass } from "../tones";
import { counted, formatDuration, formatNumber, formatShare, shorten } from "../units";
import { useAnswer } from "../useQuery";

const RECENT_STEPS = 15;
const MOST_SLOW = 4;

interface Props {
  run: string;
  lanes: readonly Lane[];
  /** Undefined while loading. */
  steps: readonly Step[] | undefined;
  /** Of the same steps. */
  pace: StepPace | undefined;
}

/** Steps that took longer than usual, and how idle the lanes of each role were. */
export function WhoIsSlow({ run, lanes, steps, pace }: Props) {
  const recent = (steps ?? []).filter((step) => step.end_ns !== null).slice(-RECENT_STEPS);
  const first = recent[0]?.step;
  const last = recent.at(-1)?.step;
  const idle = useAnswer(
    "steps/idle",
    { run, first: first!, last: last! },
    { enabled: first !== undefined && last !== undefined, everyMs: 3000 },
  );
  const laneOf = useMemo(() => new Map(lanes.map((lane) => [lane.lane_id, lane])), [lanes]);
  return (
    <Panel
      className="span-4"
      title="Slow steps and idle lanes"
      actions={<span>{`last ${counted(recent.length, "step")}`}</span>}
    >
      {pace === undefined && <Loading />}
      {pace?.slow.length === 0 && <p className="muted">No step took much longer than the others.</p>}
      {(pace?.slow ?? []).slice(0, MOST_SLOW).map((one) => (
        <div key={one.step} className="bar-line">
          <span>
            <ViewLink
              view="overview"
              state={{ window: `${one.step}-${one.step}` }}
              title="Compare it with a typical step"
            >
              step {one.step}
            </ViewLink>
          </span>
          <span className="muted">{formatDuration(one.end_ns - one.start_ns)}</span>
          <b className={severityClass(one.severity)}>{formatNumber(one.ratio)} ×</b>
        </div>
      ))}
      {(idle.data ?? []).length > 0 && <h3 className="sub-title">Idle share by role</h3>}
      {(idle.data ?? []).slice(0, 6).map((one) => {
        const worst = laneOf.get(one.worst_lane_id);
        const name = worst === undefined ? "" : (worst.lane ?? worst.process_id);
        return (
          <div
            key={one.role}
            className="bar-line"
            title={`${counted(one.lanes, "lane")}; the idlest is ${name} with ${formatShare(one.worst_share)}`}
          >
            <i className="bar is-idle" style={{ width: `${one.share * 100}%` }} />
            <span>
              <ViewLink view="timeline" state={{ lane: one.worst_lane_id }} title={`Show the idlest lane, ${name}`}>
                {shorten(one.role === "" ? "no role" : one.role, 30)}
              </ViewLink>
            </span>
            <span className="muted">
              {one.lanes} {one.lanes === 1 ? "lane" : "lanes"}
            </span>
            <b>{formatShare(one.share)}</b>
          </div>
        );
      })}
    </Panel>
  );
}
