import type { Finding } from "../api";

const RANKS: Readonly<Record<string, number>> = { critical: 0, error: 1, warning: 2, info: 3 };
const CLASSES: Readonly<Record<string, string>> = { critical: "is-bad", error: "is-bad", warning: "is-warning" };

/** The severity of a finding. */
export function SeverityBadge({ severity }: { severity: string }) {
  return <span className={`badge ${CLASSES[severity] ?? ""}`}>{severity}</span>;
}

/** Sorts findings: open before resolved, then most severe first, then latest. */
export function byGravity(one: Finding, other: Finding): number {
  return (
    Number(one.status === "resolved") - Number(other.status === "resolved") ||
    (RANKS[one.severity] ?? 4) - (RANKS[other.severity] ?? 4) ||
    other.start_ns - one.start_ns
  );
}
