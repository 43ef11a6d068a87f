import { type Finding, type LogLine, api } from "../api";
import { Panel } from "../components/Panel";
import { SeverityBadge, byGravity } from "../components/SeverityBadge";
import { ViewLink } from "../components/ViewLink";
import { formatAgo, formatCount, formatLevel, shorten } from "../units";
import { useQuery } from "../useQuery";
import { timelineFinding } from "../views/links";

const WARNING = 30;

/** Findings, and the newest warnings and errors. */
export function Troubles({ run }: { run: string }) {
  const findings = useQuery(`findings ${run}`, (signal) => api.findings({ run }, signal), { everyMs: 3000 });
  const logs = useQuery(`overview logs ${run}`, (signal) => api.logs({ run, level: WARNING, limit: 80 }, signal), {
    everyMs: 4000,
  });
  return (
    <>
      <Panel
        className="span-4"
        title="Findings"
        value={formatCount(findings.data?.length ?? 0)}
        actions={<ViewLink view="findings">all</ViewLink>}
      >
        {findings.data?.length === 0 && <p className="muted">No findings were recorded for this run.</p>}
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
        {logs.data?.length === 0 && <p className="muted">None were logged.</p>}
        {grouped(logs.data ?? [])
          .slice(0, 7)
          .map(({ line, count }) => (
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
                {count > 1 ? `${formatCount(count)} × ` : ""}
                {line.role} {line.rank ?? ""}
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

/** The newest line of each message, with how often it came: a burst of one message must not hide the others. */
function grouped(lines: readonly LogLine[]): { line: LogLine; count: number }[] {
  const found = new Map<string, { line: LogLine; count: number }>();
  for (const line of lines) {
    const key = `${line.level} ${line.logger} ${line.message.replace(/\d+/g, "#")}`;
    const known = found.get(key);
    if (known === undefined) found.set(key, { line, count: 1 });
    else known.count += 1;
  }
  return [...found.values()].sort(
    (one, other) => other.line.level - one.line.level || other.line.time_ns - one.line.time_ns,
  );
}
