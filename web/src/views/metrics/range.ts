// The time range and the resolution of charts.
import type { RunSummary } from "../../api";

export interface Range {
  start_ns: number;
  end_ns: number;
  /** The width of an interval, in nanoseconds. */
  width: number;
}

export const RECENT = ["", "60", "300", "900", "3600", "21600"] as const;
export type Recent = (typeof RECENT)[number];
const RECENT_LABELS: Readonly<Record<Recent, string>> = {
  "": "entire run",
  60: "last minute",
  300: "last 5 min",
  900: "last 15 min",
  3600: "last hour",
  21600: "last 6 h",
};
export const RECENT_OPTIONS = RECENT.map((value) => ({ value, label: RECENT_LABELS[value] }));

const ROUND_S = [
  0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10,
  15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400,
];

/** A round width with which a range has at most this many points. */
export function roundWidth(lengthNs: number, points: number): number {
  const seconds = lengthNs / 1e9 / points;
  return (ROUND_S.find((candidate) => candidate >= seconds) ?? Math.ceil(seconds / 86_400) * 86_400) * 1e9;
}

interface Wanted {
  /** Only the last this many seconds; empty for the entire run. */
  recent: Recent;
  /** Seconds since 1970; both 0 if no window was chosen. */
  from: number;
  to: number;
}

/** The range to query, aligned to intervals, so that a growing run does not change the query constantly. */
export function rangeOf(summary: RunSummary | undefined, { recent, from, to }: Wanted, points: number): Range | null {
  const first = summary?.start_ns;
  const last = summary?.end_ns;
  if (to > from) return alignedRange(from * 1e9, to * 1e9, points);
  if (first === null || first === undefined || last === null || last === undefined) return null;
  return alignedRange(recent === "" ? first : Math.max(first, last - Number(recent) * 1e9), last, points);
}

/** A range of whole intervals, at least as long as asked for. */
export function alignedRange(start: number, end: number, points: number): Range {
  const width = roundWidth(Math.max(1e6, end - start), points);
  return { start_ns: Math.floor(start / width) * width, end_ns: (Math.floor(end / width) + 1) * width, width };
}

/** The number of steps per point. */
export function stepWidth(summary: Pick<RunSummary, "first_step" | "last_step"> | undefined, points: number): number {
  const steps = (summary?.last_step ?? 0) - (summary?.first_step ?? 0) + 1;
  return Math.max(1, Math.ceil(steps / points));
}
