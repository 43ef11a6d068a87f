import { Panel } from "../components/Panel";
import { ViewLink } from "../components/ViewLink";
import { reportFacts } from "../reportFacts";
import { counted, formatSeconds } from "../units";
import { useAnswer } from "../useQuery";

const STEPS = 10;

/** The process that delays the steps, and how long they would take if it were as fast as the others. */
export function CriticalPathPanel({ run, last }: { run: string; last: number | undefined }) {
  const { data } = useAnswer(
    "steps/critical_path",
    { run, limit: STEPS, last },
    { everyMs: 5000, enabled: reportFacts() === null },
  );
  if (data === undefined || data.steps.length === 0) return null;
  const suspects = data.culprit === null ? data.suspects : [data.culprit];
  return (
    <Panel
      className="span-4"
      title="Critical path"
      value={data.excess_seconds > 0 ? `${formatSeconds(data.excess_seconds)} lost` : undefined}
      actions={<span>{counted(data.steps.length, "step")}</span>}
    >
      {suspects.length === 0 && (
        <p className="muted">
          {data.excess_seconds > 0 ? "No single process delayed the others." : "No process delayed the others."}
        </p>
      )}
      {suspects.map((suspect) => (
        <p key={suspect.lane_id} className="suspect">
          <ViewLink view="timeline" state={{ lane: suspect.lane_id, search: suspect.name }}>
            {suspect.text}
          </ViewLink>
        </p>
      ))}
    </Panel>
  );
}
