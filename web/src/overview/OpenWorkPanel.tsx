import type { OpenWork } from "../api";
import { Panel } from "../components/Panel";
import { ViewLink } from "../components/ViewLink";
import { colorOfName } from "../colors";
import { processTitle } from "../processTitle";
import { formatCount, formatSeconds, shorten } from "../units";
import { severityClass } from "../tones";
import { useAnswer } from "../useQuery";
import { Loading } from "../components/Loading";
import { sumOf } from "../statistics";

/** Work in flight, and the age of the oldest of each kind. */
export function OpenWorkPanel({ run }: { run: string }) {
  const { data } = useAnswer("open/work", { run }, { pollMs: 5000 });
  const rows = data ?? [];
  const total = sumOf(rows.map((row) => row.count));
  const oldest = Math.max(1, ...rows.map((row) => row.oldest_age_s));
  return (
    <Panel
      className="span-4"
      title="Work in flight"
      value={total === 0 ? undefined : formatCount(total)}
      actions={<span>oldest</span>}
    >
      {data === undefined && <Loading />}
      {data?.length === 0 && <p className="muted">No long-running work.</p>}
      {rows.slice(0, 8).map((row) => (
        <div key={row.name} className="bar-line">
          <i
            className="bar"
            style={{ width: `${(100 * row.oldest_age_s) / oldest}%`, background: colorOfName(row.name) }}
          />
          <span>
            <ViewLink
              view="timeline"
              state={{ span: row.oldest_span_id, lane: row.lane_id }}
              title="Show the oldest on the timeline"
            >
              {shorten(row.name, 40)}
            </ViewLink>{" "}
            <span className="muted">{shorten(processTitle(row), 24)}</span>
          </span>
          <span className="muted">{formatCount(row.count)} open</span>
          <b className={ageClass(row)} title={usualText(row)}>
            {formatSeconds(row.oldest_age_s)}
          </b>
        </div>
      ))}
    </Panel>
  );
}

/** The class that colors the age of the oldest; muted if it is unknown what is usual. */
export function ageClass(row: Pick<OpenWork, "usual_s" | "severity">): string {
  return row.usual_s === null ? "muted" : severityClass(row.severity);
}

/** The typical duration of such work. */
export function usualText(row: Pick<OpenWork, "usual_s" | "long_s">): string {
  if (row.usual_s === null) return "None of them has finished yet.";
  return `Usually ${formatSeconds(row.usual_s)}; 99% take at most ${formatSeconds(row.long_s)}.`;
}
