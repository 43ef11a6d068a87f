import type { StepComparison } from "../api";
import { Panel } from "../components/Panel";
import { ViewLink } from "../components/ViewLink";
import { colorOfName } from "../colors";
import { reportFacts } from "../reportFacts";
import { formatDuration, shorten } from "../units";
import { useUrlState } from "../url";
import { useAnswer } from "../useQuery";
import { timelineWindow } from "../views/links";
import { comparisonText } from "./stepTimes";

interface Props {
  run: string;
  step: number;
  onSteps: (first: number, last: number) => void;
}

const MOST_ROWS = 8;

/** One step compared with a typical one. */
export function ComparisonPanel({ run, step, onSteps }: Props) {
  const [role] = useUrlState("role", "");
  const { data, error } = useAnswer(
    "steps/compare",
    { run, step, role: role === "" ? undefined : role },
    { everyMs: 5000, keep: false, enabled: reportFacts() === null },
  );
  if (reportFacts() !== null) return null;
  const longest = Math.max(1, ...(data?.phases ?? []).map((row) => Math.max(row.wall_ns, row.usual_ns)));
  return (
    <Panel
      className="span-12 comparison"
      title={`Step ${step} compared with a typical step`}
      actions={
        <>
          {data !== undefined && (
            <ViewLink view="timeline" state={timelineWindow(data.start_ns, data.end_ns)}>
              Timeline
            </ViewLink>
          )}
          {VIEWS.map(([view, title]) => (
            <ViewLink key={view} view={view}>
              {title}
            </ViewLink>
          ))}
          <button
            type="button"
            className="icon-button"
            onClick={() => onSteps(step - 1, step - 1)}
            aria-label="Step back"
            disabled={step === 0}
          >
            ‹
          </button>
          <button
            type="button"
            className="icon-button"
            onClick={() => onSteps(step + 1, step + 1)}
            aria-label="Step forward"
          >
            ›
          </button>
        </>
      }
    >
      {error !== undefined && <p className="muted">{error}</p>}
      {data !== undefined && (
        <>
          <p>
            <strong>{comparisonText(data)}</strong>{" "}
            <span className="muted">{`Typical is the median of ${data.neighbors} steps around it, on an average lane of ${data.role || "the run"}.`}</span>
          </p>
          {data.phases.slice(0, MOST_ROWS).map((row) => (
            <Row key={row.name} row={row} longest={longest} />
          ))}
          {data.inside.some((row) => row.wall_ns > row.usual_ns * 1.2) && (
            <>
              <h3 className="sub-title">Inside these phases</h3>
              {data.inside.slice(0, 4).map((row) => (
                <Row key={row.name} row={row} longest={longest} />
              ))}
            </>
          )}
        </>
      )}
    </Panel>
  );
}

const VIEWS: readonly (readonly [string, string])[] = [
  ["hotspots", "Hotspots"],
  ["sessions", "Sessions"],
  ["logs", "Logs"],
  ["metrics", "Metrics"],
];

function Row({ row, longest }: { row: StepComparison["phases"][number]; longest: number }) {
  const more = row.wall_ns - row.usual_ns;
  const isLonger = more > Math.max(0.2 * row.usual_ns, 0.02 * longest);
  return (
    <div className="bar-line">
      <i className="bar" style={{ width: `${(row.wall_ns / longest) * 100}%`, background: colorOfName(row.name) }} />
      <span>
        <ViewLink view="hotspots" state={{ shape: "latency", name: row.name }} title="Show it across all steps">
          {shorten(row.name, 60)}
        </ViewLink>
      </span>
      <b>{formatDuration(row.wall_ns)}</b>
      <span className="muted">{`usually ${formatDuration(row.usual_ns)}`}</span>
      <b className={isLonger ? "bad" : "muted"}>{`${more < 0 ? "−" : "+"}${formatDuration(Math.abs(more))}`}</b>
    </div>
  );
}
