const KINDS: Readonly<Record<string, string>> = {
  failed: "is-bad",
  lost: "is-bad",
  error: "is-bad",
  critical: "is-bad",
  rejected: "is-warning",
  cancelled: "is-warning",
  dropped: "is-warning",
  warning: "is-warning",
  accepted: "is-good",
  ok: "is-good",
};
/** Symbols in addition to colors, for color-blind users. */
const MARKS: Readonly<Record<string, string>> = {
  failed: "✕",
  lost: "✕",
  error: "✕",
  critical: "✕",
  rejected: "–",
  cancelled: "⊘",
  dropped: "⊘",
  accepted: "✓",
  ok: "✓",
  pending: "▸",
  open: "▸",
};

/** A status as a word with a symbol and a color. */
export function StatusBadge({ status }: { status: string }) {
  const kind = KINDS[status];
  return (
    <span className={kind === undefined ? "badge" : `badge ${kind}`}>{`${MARKS[status] ?? ""} ${status}`.trim()}</span>
  );
}
