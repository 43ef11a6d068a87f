// Conditions on the columns of a report.
import type { StringColumn } from "../api";

/** Whether a row matches. */
export type Condition = (row: number) => boolean;

const lowered = new WeakMap<StringColumn, readonly string[]>();

export function textAt(column: StringColumn, row: number): string | null {
  return column.values[column.rows[row]!] ?? null;
}

export function equalTo(column: StringColumn, wanted: string): Condition {
  const place = column.values.indexOf(wanted);
  return (row) => place >= 0 && column.rows[row] === place;
}

/** Ignores case; a missing text contains nothing. */
export function containing(column: StringColumn, part: string): Condition {
  let texts = lowered.get(column);
  if (texts === undefined) lowered.set(column, (texts = column.values.map((text) => text.toLowerCase())));
  const wanted = part.toLowerCase();
  const fits = texts.map((text) => text.includes(wanted));
  return (row) => fits[column.rows[row]!] === true;
}

/** A span id with all of its digits. */
export function sameId(id: string): string {
  return id.padStart(16, "0").toLowerCase();
}
