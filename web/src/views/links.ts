// The state that links from one view into another carry.
import type { Finding } from "../api";
import type { LinkState } from "../url";

/** The timeline around a stretch of time, in nanoseconds. */
export function timelineWindow(startNs: number, endNs: number, more: LinkState = {}): LinkState {
  const start = startNs / 1e9;
  const end = Math.max(endNs / 1e9, start + 1e-3);
  const margin = (end - start) * 0.3;
  return { from: (start - margin).toFixed(6), to: (end + margin).toFixed(6), ...more };
}

/** The timeline at one span; its window where the times are known. */
export function timelineSpan(spanId: string, startNs?: number, endNs?: number): LinkState {
  return startNs === undefined ? { span: spanId } : timelineWindow(startNs, endNs ?? startNs + 1e9, { span: spanId });
}

/** The timeline with what a finding is about in view and marked. */
export function timelineFinding(finding: Pick<Finding, "finding_id" | "start_ns" | "end_ns">): LinkState {
  return timelineWindow(finding.start_ns, finding.end_ns, { finding: finding.finding_id });
}
