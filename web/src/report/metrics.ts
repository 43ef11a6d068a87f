// The metrics of a report: lines of every series at one width, filtered, grouped and aggregated on demand.
import {
  ApiError,
  type HeatMap,
  type HeatMapQuery,
  type Line,
  type Metric,
  type QuantileQuery,
  type RangeQuery,
  lineValue,
} from "../api";
import { kindOf } from "../metricKinds";
import type { MetricLines } from "./document";

const ONE_LINE =
  "A report has distributions of all series combined: remove filters and grouping, or open the run in the live page.";

export class Metrics {
  private readonly lines: ReadonlyMap<string, MetricLines>;

  constructor(
    private readonly metrics: readonly Metric[],
    lines: readonly MetricLines[],
  ) {
    this.lines = new Map(lines.map((one) => [one.name, one]));
  }

  /** Values of a gauge or counter, in intervals of the requested width, or of the stored width if that is larger. */
  range(query: RangeQuery): Line[] {
    const stored = this.lines.get(query.metric);
    const metric = this.metrics.find((one) => one.name === query.metric);
    if (stored === undefined || metric === undefined) return [];
    const storedWidth = query.axis === "step" ? stored.step_width : stored.width_ns;
    const width = Math.max(storedWidth, Number(query.width));
    const groups = new Map<string, { labels: Record<string, string>; lines: Line[] }>();
    for (const line of linesOf(stored, query.axis)) {
      if (!(query.match ?? []).every((condition) => matches(line.labels, condition))) continue;
      const labels = shownLabels(line.labels, query.group_by, metric);
      const key = JSON.stringify(Object.entries(labels));
      const group = groups.get(key);
      if (group === undefined) groups.set(key, { labels, lines: [line] });
      else group.lines.push(line);
    }
    const { isRate } = kindOf(metric.kind);
    return [...groups.values()].flatMap(({ labels, lines }) => {
      const sums = summed(lines, query, width);
      const x = [...sums.keys()].sort((one, other) => one - other);
      if (x.length === 0) return [];
      return [
        {
          labels,
          x,
          y: x.map((at) =>
            isRate ? (sums.get(at)!.sum * storedWidth) / width : summary(sums.get(at)!, query.aggregation),
          ),
        },
      ];
    });
  }

  quantiles(query: QuantileQuery): Line[] {
    const stored = this.lines.get(query.metric);
    if (stored === undefined) return [];
    refuseParts(query);
    const shares = new Set(query.share ?? [0.5, 0.95, 0.99]);
    return linesOf(stored, query.axis)
      .filter((line) => shares.has(Number(line.labels["quantile"])))
      .map((line) => cut(line, query))
      .filter((line) => line.x.length > 0);
  }

  heatMap(query: HeatMapQuery): HeatMap {
    const stored = this.lines.get(query.metric);
    refuseParts(query);
    const spread = query.axis === "step" ? stored?.step_spread : stored?.time_spread;
    if (spread === null || spread === undefined) return { x: [], lower: [], upper: [], counts: [] };
    const kept = spread.x.map((x, place) => [x, place] as const).filter(([x]) => isWithin(x, query));
    return { ...spread, x: kept.map(([x]) => x), counts: kept.map(([, place]) => spread.counts[place]!) };
  }

  labelValues(label: string, metric: string | undefined): string[] {
    const of =
      metric === undefined ? [...this.lines.values()] : [this.lines.get(metric)].filter((one) => one !== undefined);
    const found = new Set(of.flatMap((one) => one.time.flatMap((line) => line.labels[label] ?? [])));
    return [...found].sort();
  }
}

function linesOf(stored: MetricLines, axis: "time" | "step" | undefined): readonly Line[] {
  return axis === "step" ? stored.steps : stored.time;
}

/** Steps are not clipped: the window of a query is a time range. */
function isWithin(
  x: number,
  query: { axis?: "time" | "step" | undefined; start_ns: number | bigint; end_ns: number | bigint },
): boolean {
  return query.axis === "step" || (x >= Number(query.start_ns) && x < Number(query.end_ns));
}

function cut(line: Line, query: QuantileQuery): Line {
  const kept = line.x.map((x, place) => [x, place] as const).filter(([x]) => isWithin(x, query));
  return { labels: line.labels, x: kept.map(([x]) => x), y: kept.map(([, place]) => line.y[place] ?? null) };
}

function refuseParts(query: { match?: readonly string[] | undefined; group_by?: readonly string[] | undefined }): void {
  if ((query.match ?? []).length > 0 || (query.group_by ?? []).some((label) => label !== ""))
    throw new ApiError(ONE_LINE, 400);
}

function matches(labels: Readonly<Record<string, string>>, condition: string): boolean {
  const place = condition.indexOf("=");
  const value = labels[condition.slice(0, place)] ?? "";
  const wanted = condition.slice(place + 1);
  if (!wanted.startsWith("~")) return value === wanted;
  try {
    return new RegExp(`^(?:${wanted.slice(1)})$`, "s").test(value);
  } catch {
    throw new ApiError(`The regular expression ${wanted.slice(1)} is not valid.`, 400);
  }
}

/** Without grouping, a line has its own labels and its process, as on the server. */
function shownLabels(
  labels: Readonly<Record<string, string>>,
  groups: readonly string[] | undefined,
  metric: Metric,
): Record<string, string> {
  const wanted = groups === undefined || groups.includes("*") ? [...metric.labels, "process_id"] : groups;
  return Object.fromEntries(wanted.flatMap((label) => (labels[label] ? [[label, labels[label]]] : [])));
}

interface Sum {
  sum: number;
  count: number;
  min: number;
  max: number;
}

function summed(lines: readonly Line[], query: RangeQuery, width: number): Map<number, Sum> {
  const sums = new Map<number, Sum>();
  for (const line of lines) {
    line.x.forEach((x, place) => {
      const value = lineValue(line.y[place]);
      if (value === null || !isWithin(x, query)) return;
      const at = Math.floor(x / width) * width;
      const known = sums.get(at);
      if (known === undefined) {
        sums.set(at, { sum: value, count: 1, min: value, max: value });
        return;
      }
      known.sum += value;
      known.count += 1;
      known.min = Math.min(known.min, value);
      known.max = Math.max(known.max, value);
    });
  }
  return sums;
}

function summary(sum: Sum, aggregation: RangeQuery["aggregation"]): number {
  if (aggregation === "min") return sum.min;
  if (aggregation === "max") return sum.max;
  return sum.sum / sum.count;
}
