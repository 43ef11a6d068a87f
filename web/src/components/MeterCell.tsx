import type { ReactNode } from "react";

/** A number with a small bar behind it, relative to the largest in its column. */
export function MeterCell({
  share,
  colour = "var(--accent)",
  children,
}: {
  share: number;
  colour?: string;
  children: ReactNode;
}) {
  const width = `${Math.max(0, Math.min(1, Number.isFinite(share) ? share : 0)) * 100}%`;
  return (
    <span className="meter">
      <i style={{ width, background: colour }} />
      <span>{children}</span>
    </span>
  );
}
