// Lines of hardware metrics as a heat map: one row per accelerator, by node.
import type { Line } from "../../api";
import type { HeatMapData } from "../../components/heatMapDrawing";
import { align } from "../../lines";
import { naturally } from "../../natural";
import { median } from "../../statistics";

/** `node-1 · GPU 2`. */
export function deviceName(labels: Readonly<Record<string, string>>): string {
  const node = labels["host"] ?? labels["node"] ?? "";
  return labels["gpu"] === undefined ? node : `${node} · GPU ${labels["gpu"]}`.trim();
}

/** Puts lines into a grid; each value is divided by the same device's value in `totals`, if given. */
export function gridOf(lines: readonly Line[], widthNs: number, totals: readonly Line[] | null = null): HeatMapData {
  const { x, lines: rows } = align(lines);
  const total = new Map((totals ?? []).map((line) => [deviceName(line.labels), latest(line)]));
  const named = rows.map((row) => ({
    name: deviceName(row.labels),
    values: row.values.map((value) => (Number.isFinite(value) ? value : null)),
  }));
  named.sort((one, other) => naturally(one.name, other.name));
  return {
    x: x.map((ns) => ns / 1e9),
    // A reading is valid until the next: columns are at least as wide as the interval between them, plus slack.
    width: Math.max(widthNs, spacing(x) * 1.6) / 1e9,
    rows: named.map((row) => row.name),
    values: named.map((row) =>
      totals === null ? row.values : row.values.map((value) => shareOf(value, total.get(row.name) ?? null)),
    ),
  };
}

/** The typical interval between readings. */
function spacing(x: readonly number[]): number {
  return x.length < 2 ? 0 : median(x.slice(1).map((at, index) => at - x[index]!));
}

function shareOf(value: number | null, total: number | null): number | null {
  return value === null || total === null || total <= 0 ? null : value / total;
}

function latest(line: Line): number | null {
  const value = line.y.at(-1);
  return typeof value === "number" ? value : null;
}
