// The finding of a link into the timeline.
import type { Finding } from "../api";
import { SeverityBadge } from "../components/SeverityBadge";
import { ViewLink } from "../components/ViewLink";
import { shorten } from "../units";
import { useAnswer } from "../useQuery";
import type { Highlight } from "./scene";

/** The finding in the address. */
export function useFinding(run: string, findingId: string): Finding | undefined {
  const { data } = useAnswer("findings", { run }, { enabled: findingId !== "", everyMs: 10_000 });
  return findingId === "" ? undefined : data?.find((one) => one.finding_id === findingId);
}

/** The area to highlight on the canvas. */
export function highlightOf(finding: Finding | undefined, origin: number): Highlight | null {
  if (finding === undefined) return null;
  return { start: finding.start_ns - origin, end: finding.end_ns - origin, lanes: new Set(finding.lanes ?? []) };
}

/** Describes the highlight, and clears it. */
export function FindingLine({ finding, onForget }: { finding: Finding; onForget: () => void }) {
  return (
    <div className="finding-line" role="status">
      <SeverityBadge severity={finding.severity} /> <strong>{shorten(finding.title, 200)}</strong>{" "}
      <ViewLink view="findings" state={{ rule: finding.rule }}>
        All findings from this rule
      </ViewLink>
      <span className="spacer" />
      <button
        type="button"
        className="icon-button"
        onClick={onForget}
        aria-label="Clear the finding"
        title="Clear the highlight (Esc)"
      >
        ×
      </button>
    </div>
  );
}
