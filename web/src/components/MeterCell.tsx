import type { ReactNode } from "react";

/** A number with a small bar behind it, relative to the largest in its column. */
export function MeterCell({
  share,
  color = "var(--accent)",
  children,
}: {
  share: number;
  color?: string;
  children: ReactNode;
}) {
  const width = `${Math.max(0, Math.min(1, Number.isFinite(share) ? share : 0)) * 100}%`;
  return (
    <span className="meter">
      <i style={{ width, background: color }} />
      <span>{children}</span>
    </span>
  );
}
