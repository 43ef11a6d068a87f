// A short description of a change.
import type { Change } from "../../api";

import { valueText } from "../runs/values";

type Format = (value: number | null | undefined) => string;

/** `0.6 → 0.3 (−50%)`; an event's attributes; `NaN` if a metric is no longer a number. */
export function changeText(change: Change, format: Format): string {
  if (change.shape === "event") {
    const attributes = Object.entries(change.detail).map(([name, value]) => `${name}: ${JSON.stringify(value)}`);
    return attributes.length > 0 ? attributes.join(", ") : "happened";
  }
  const before = format(change.before);
  if (change.after === null) return `${before} → ${valueText(change.detail["value"])}`;
  const share =
    change.before === null || change.before === 0 ? null : (change.after - change.before) / Math.abs(change.before);
  const relative = share === null ? "" : ` (${share > 0 ? "+" : "−"}${Math.round(Math.abs(share) * 100)}%)`;
  return `${before} → ${format(change.after)}${relative}${change.shape === "spike" ? ", in one step alone" : ""}`;
}
