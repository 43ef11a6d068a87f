import type { Finding } from "../api";
import { SeverityBadge, byGravity } from "../components/SeverityBadge";
import { ViewLink } from "../components/ViewLink";
import { formatAgo, formatCount } from "../units";
import { useAnswer } from "../useQuery";
import { timelineFinding } from "../views/links";

/** The open findings that need action, most severe first, without those that another one explains. */
export function openFindings(findings: readonly Finding[]): Finding[] {
  const open = findings.filter((finding) => finding.status === "open" && finding.severity !== "info");
  const explained = new Set(open.flatMap((finding) => finding.explains ?? []));
  return open.filter((finding) => !explained.has(finding.finding_id)).sort(byGravity);
}

/** The most severe open finding, above everything else. */
export function FindingBanner({ run }: { run: string }) {
  const { data } = useAnswer("findings", { run }, { everyMs: 3000 });
  const open = openFindings(data ?? []);
  const [worst] = open;
  if (worst === undefined) return null;
  return (
    <div className={`finding-banner is-${worst.severity}`} role="status">
      <SeverityBadge severity={worst.severity} />
      <ViewLink view="timeline" state={timelineFinding(worst)} title={worst.explanation ?? ""}>
        {worst.title}
      </ViewLink>
      <span className="muted">began {formatAgo(worst.start_ns)}</span>
      <ViewLink view="findings">{open.length === 1 ? "evidence" : `and ${formatCount(open.length - 1)} more`}</ViewLink>
      {worst.remedy && <span className="remedy">{worst.remedy}</span>}
    </div>
  );
}
