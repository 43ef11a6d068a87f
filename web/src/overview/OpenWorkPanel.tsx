import type { OpenWork } from "../api";
import { Panel } from "../components/Panel";
import { ViewLink } from "../components/ViewLink";
import { colourOfName } from "../colours";
import { formatCount, formatSeconds, shorten } from "../units";
import { AGE_CLASSES, toneOfWork } from "../tones";
import { useAnswer } from "../useQuery";
import { Loading } from "../components/Loading";

/** What is running now, and for how long the oldest of each kind. */
export function OpenWorkPanel({ run }: { run: string }) {
  const { data } = useAnswer("open/work", { run });
  const rows = data ?? [];
  const total = rows.reduce((sum, row) => sum + row.count, 0);
  const oldest = Math.max(1, ...rows.map((row) => row.oldest_age_s));
  return (
    <Panel
      className="span-4"
      title="Work in flight"
      value={total === 0 ? undefined : formatCount(total)}
      actions={<span>oldest</span>}
    >
      {data === undefined && <Loading />}
      {data?.length === 0 && <p className="muted">Nothing has been open for longer than a moment.</p>}
      {rows.slice(0, 8).map((row) => (
        <div key={row.name} className="bar-line">
          <i
            className="bar"
            style={{ width: `${(100 * row.oldest_age_s) / oldest}%`, background: colourOfName(row.name) }}
          />
          <span>
            <ViewLink
              view="timeline"
              state={{ span: row.oldest_span_id, lane: row.lane_id }}
              title="Show the oldest on the timeline"
            >
              {shorten(row.name, 40)}
            </ViewLink>{" "}
            <span className="muted">{where(row)}</span>
          </span>
          <span className="muted">{formatCount(row.count)} open</span>
          <b className={AGE_CLASSES[toneOfWork(row.oldest_age_s, row.long_s)]} title={usualText(row)}>
            {formatSeconds(row.oldest_age_s)}
          </b>
        </div>
      ))}
    </Panel>
  );
}

/** How long such work usually takes. */
export function usualText(row: Pick<OpenWork, "usual_s" | "long_s">): string {
  if (row.usual_s === null) return "None of these has finished yet.";
  return `Usually ${formatSeconds(row.usual_s)}; 99 % take at most ${formatSeconds(row.long_s)}.`;
}

function where(row: OpenWork): string {
  return shorten(`${row.role}${row.rank === null ? "" : ` ${row.rank}`}`, 24);
}
