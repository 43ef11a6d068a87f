// Lines of a chart, as the API sends them, on one common x axis.
import { type Line, lineValue } from "./api";

export interface AlignedLine {
  label: string;
  labels: Readonly<Record<string, string>>;
  values: (number | null)[];
}

export interface AlignedLines {
  /** Ascending: nanoseconds or steps, unconverted. */
  x: number[];
  lines: AlignedLine[];
}

/** Puts lines on one x axis, with gaps where a line has no value. */
export function align(lines: readonly Line[], name = ""): AlignedLines {
  const x = [...new Set(lines.flatMap((line) => line.x))].sort((one, other) => one - other);
  const place = new Map(x.map((value, index) => [value, index]));
  const shown = distinguishing(lines);
  return {
    x,
    lines: lines.map((line) => {
      const values: (number | null)[] = new Array<number | null>(x.length).fill(null);
      line.x.forEach((at, index) => {
        values[place.get(at)!] = lineValue(line.y[index]);
      });
      return { label: labelText(line.labels, shown) || name, labels: line.labels, values };
    }),
  };
}

/** The labels that distinguish the lines; labels that all lines share are dropped. */
function distinguishing(lines: readonly Line[]): readonly string[] {
  const names = [...new Set(lines.flatMap((line) => Object.keys(line.labels)))].sort();
  let shown = names.filter((name) => new Set(lines.map((line) => line.labels[name])).size > 1);
  const needed = new Set(lines.map((line) => labelText(line.labels, shown))).size;
  // Redundant labels are dropped: first the process id, then the longest.
  const length = (name: string) =>
    name === "process_id" ? Infinity : Math.max(...lines.map((line) => line.labels[name]?.length ?? 0));
  for (const name of [...shown].sort((one, other) => length(other) - length(one))) {
    const fewer = shown.filter((one) => one !== name);
    if (new Set(lines.map((line) => labelText(line.labels, fewer))).size === needed) shown = fewer;
  }
  return shown;
}

function labelText(labels: Readonly<Record<string, string>>, names: readonly string[]): string {
  return names
    .filter((name) => labels[name] !== undefined)
    .map((name) => (name === "quantile" ? quantileName(labels[name]!) : `${name}=${labels[name]}`))
    .join(" ");
}

/** `0.95` is p95. */
export function quantileName(share: string): string {
  return `p${Number((Number(share) * 100).toFixed(4))}`;
}

/** Lines as CSV: one row per x. */
export function toCsv(
  x: readonly (number | string)[],
  xName: string,
  columns: readonly { label: string; values: readonly (number | null)[] }[],
): string {
  const head = [xName, ...columns.map((column) => column.label)].map(csvCell).join(",");
  const rows = x.map((at, index) =>
    [String(at), ...columns.map((column) => (column.values[index] ?? "").toString())].join(","),
  );
  return `${[head, ...rows].join("\n")}\n`;
}

/** A cell that spreadsheets read as text: quoted where needed, and never as a formula. */
export function csvCell(text: string): string {
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** The x values at which some value is NaN or infinite. */
export function wrongPlaces(x: readonly number[], columns: readonly (readonly (number | null)[])[]): number[] {
  return x.filter((_, index) =>
    columns.some((values) => typeof values[index] === "number" && !Number.isFinite(values[index])),
  );
}
