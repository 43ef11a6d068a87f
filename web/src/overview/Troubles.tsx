import type { Finding } from "../api";
import { Panel } from "../components/Panel";
import { SeverityBadge, byGravity } from "../components/SeverityBadge";
import { ViewLink } from "../components/ViewLink";
import { processTitle } from "../processTitle";
import { groupLines } from "./groupLines";
import { formatAgo, formatCount, formatLevel, shorten } from "../units";
import { useAnswer } from "../useQuery";
import { timelineFinding } from "../views/links";
import { Loading } from "../components/Loading";

const WARNING = 30;
const MOST_LINES = 500;

/** Findings, and the newest warnings and errors. */
export function Troubles({ run }: { run: string }) {
  const findings = useAnswer("findings", { run }, { everyMs: 3000 });
  const logs = useAnswer("logs", { run, level: WARNING, limit: MOST_LINES }, { everyMs: 4000 });
  return (
    <>
      <Panel
        className="span-4"
        title="Findings"
        value={formatCount(findings.data?.length ?? 0)}
        actions={<ViewLink view="findings">all</ViewLink>}
      >
        {findings.data === undefined && <Loading />}
        {findings.data?.length === 0 && <p className="muted">No findings in this run.</p>}
        {[...(findings.data ?? [])]
          .sort(byGravity)
          .slice(0, 6)
          .map((finding) => (
            <FindingLine key={finding.finding_id} finding={finding} />
          ))}
      </Panel>
      <Panel
        className="span-4"
        title="Warnings and errors"
        actions={
          <ViewLink view="logs" state={{ level: WARNING }}>
            all logs
          </ViewLink>
        }
      >
        {logs.data === undefined && <Loading />}
        {logs.data?.length === 0 && <p className="muted">None logged.</p>}
        {groupLines(logs.data ?? [])
          .slice(0, 7)
          .map(({ line, count, places }) => (
            <div key={`${line.logger} ${line.message}`} className="log-line" title={line.message}>
              <span className={`badge ${line.level >= 40 ? "is-bad" : "is-warning"}`}>{formatLevel(line.level)}</span>
              <span>
                {line.span_id === null ? (
                  shorten(line.message, 200)
                ) : (
                  <ViewLink view="timeline" state={{ span: line.span_id, lane: line.lane_id }}>
                    {shorten(line.message, 200)}
                  </ViewLink>
                )}
              </span>
              <span className="muted">
                {count > 1 ? `${logs.data!.length < MOST_LINES ? "" : "at least "}${formatCount(count)} × ` : ""}
                {places > 1 ? `${formatCount(places)} processes` : processTitle(line)}
              </span>
              <span className="muted">{formatAgo(line.time_ns)}</span>
            </div>
          ))}
      </Panel>
    </>
  );
}

function FindingLine({ finding }: { finding: Finding }) {
  return (
    <div className="log-line" title={finding.title}>
      <SeverityBadge severity={finding.severity} />
      <span>
        <ViewLink view="timeline" state={timelineFinding(finding)}>
          {shorten(finding.title, 200)}
        </ViewLink>
      </span>
    </div>
  );
}
