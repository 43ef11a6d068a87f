// The state in links from one view to another.
import type { Finding } from "../api";
import type { LinkState } from "../url";

/** The timeline around a time range, in nanoseconds. */
export function timelineWindow(startNs: number, endNs: number, more: LinkState = {}): LinkState {
  const start = startNs / 1e9;
  const end = Math.max(endNs / 1e9, start + 1e-3);
  const margin = (end - start) * 0.3;
  return { from: (start - margin).toFixed(6), to: (end + margin).toFixed(6), ...more };
}

/** The timeline at one span; with its window, if the times are known. */
export function timelineSpan(spanId: string, startNs?: number, endNs?: number): LinkState {
  return startNs === undefined ? { span: spanId } : timelineWindow(startNs, endNs ?? startNs + 1e9, { span: spanId });
}

/** The timeline with the lanes and time of a finding in view and highlighted. */
export function timelineFinding(finding: Pick<Finding, "finding_id" | "start_ns" | "end_ns">): LinkState {
  return timelineWindow(finding.start_ns, finding.end_ns, { finding: finding.finding_id });
}
