// The metrics of a report: every series as sums in intervals, which are filtered, grouped and merged on demand.
import {
  ApiError,
  type HeatMap,
  type HeatMapQuery,
  type Line,
  type Metric,
  type MetricLines,
  type QuantileQuery,
  type RangeQuery,
  type SeriesSums,
  lineValue,
} from "../api";
import { kindOf } from "../metricKinds";

const ONE_LINE =
  "A report has all series of this metric combined: remove filters and grouping, or open the run in the live page.";
const NOT_STORED = "A report does not have this aggregation: open the run in the live page.";

interface Merged {
  sum: number;
  count: number;
  min: number;
  max: number;
}

type Aggregate = (merged: Merged, per: number) => number;

const OF_GAUGES: Readonly<Record<string, Aggregate>> = {
  avg: ({ sum, count }) => sum / count,
  min: ({ min }) => min,
  max: ({ max }) => max,
  count: ({ count }) => count,
};
const OF_COUNTERS: Readonly<Record<string, Aggregate>> = {
  rate: ({ sum }, per) => sum / per,
  increase: ({ sum }) => sum,
};

export class Metrics {
  private readonly lines: ReadonlyMap<string, MetricLines>;

  constructor(
    private readonly metrics: readonly Metric[],
    lines: readonly MetricLines[],
  ) {
    this.lines = new Map(lines.map((one) => [one.name, one]));
  }

  /** Values of a gauge or counter, in intervals of the requested width, or of the next multiple of the stored width. */
  range(query: RangeQuery): Line[] {
    const stored = this.lines.get(query.metric);
    const metric = this.metrics.find((one) => one.name === query.metric);
    if (stored === undefined || metric === undefined) return [];
    const { isRate } = kindOf(metric.kind);
    const aggregate = (isRate ? OF_COUNTERS : OF_GAUGES)[query.aggregation ?? (isRate ? "rate" : "avg")];
    if (aggregate === undefined || (query.smoothing ?? 0) > 0) throw new ApiError(NOT_STORED, 400);
    const isStep = query.axis === "step";
    const lines = isStep ? stored.steps : stored.time;
    if (!stored.is_apart && lines.length > 0) refuseParts({ ...query, group_by: query.group_by ?? ["*"] });
    const groups = new Map<string, { labels: Record<string, string>; lines: SeriesSums[] }>();
    for (const line of lines) {
      if (!(query.match ?? []).every((condition) => matches(everyLabel(line), condition))) continue;
      const labels = shownLabels(line, query.group_by);
      const key = JSON.stringify(Object.entries(labels).sort());
      const group = groups.get(key);
      if (group === undefined) groups.set(key, { labels, lines: [line] });
      else group.lines.push(line);
    }
    const storedWidth = isStep ? stored.step_width : stored.width_ns;
    const ratio = Math.max(1, Math.ceil(Number(query.width) / storedWidth));
    const per = (ratio * storedWidth) / (isStep ? 1 : 1e9);
    return [...groups.values()].flatMap(({ labels, lines: some }) => {
      const merged = [...mergedIntervals(some, query, storedWidth, ratio)].sort(([one], [other]) => one - other);
      if (merged.length === 0) return [];
      return [{ labels, x: merged.map(([x]) => x), y: merged.map(([, interval]) => aggregate(interval, per)) }];
    });
  }

  quantiles(query: QuantileQuery): Line[] {
    const stored = this.lines.get(query.metric);
    if (stored === undefined) return [];
    refuseParts(query);
    const shares = new Set(query.share ?? [0.5, 0.95, 0.99]);
    return (query.axis === "step" ? stored.step_quantiles : stored.time_quantiles)
      .filter((line) => shares.has(Number(line.labels["quantile"])))
      .map((line) => {
        const kept = placesWithin(line.x, query, stored.width_ns);
        return { ...line, x: kept.map((place) => line.x[place]!), y: kept.map((place) => line.y[place] ?? null) };
      })
      .filter((line) => line.x.length > 0);
  }

  heatMap(query: HeatMapQuery): HeatMap {
    const stored = this.lines.get(query.metric);
    refuseParts(query);
    const spread = query.axis === "step" ? stored?.step_spread : stored?.time_spread;
    if (spread == null) return { x: [], lower: [], upper: [], counts: [] };
    const kept = placesWithin(spread.x, query, 2 * stored!.width_ns);
    return { ...spread, x: kept.map((place) => spread.x[place]!), counts: kept.map((place) => spread.counts[place]!) };
  }

  labelValues(label: string, metric: string | undefined): string[] {
    const of =
      metric === undefined ? [...this.lines.values()] : [this.lines.get(metric)].filter((one) => one !== undefined);
    const found = of.flatMap((one) => one.time.map((line) => line.process[label] ?? line.labels[label]));
    return [...new Set(found.filter((value) => value !== undefined))].sort();
  }
}

interface Window {
  axis?: "time" | "step" | undefined;
  start_ns: number | bigint;
  end_ns: number | bigint;
}

/** Whether an interval overlaps the window of a query. Steps are not clipped: the window is a time range. */
function isWithin(x: number, { axis, start_ns, end_ns }: Window, width: number): boolean {
  return axis === "step" || (x + width > Number(start_ns) && x < Number(end_ns));
}

function placesWithin(x: readonly number[], window: Window, width: number): number[] {
  return x.flatMap((at, place) => (isWithin(at, window, width) ? [place] : []));
}

function refuseParts(query: { match?: readonly string[] | undefined; group_by?: readonly string[] | undefined }): void {
  if ((query.match ?? []).length > 0 || (query.group_by ?? []).some((label) => label !== ""))
    throw new ApiError(ONE_LINE, 400);
}

function everyLabel({ labels, process }: SeriesSums): Record<string, string> {
  return { ...process, ...labels };
}

function matches(labels: Readonly<Record<string, string>>, condition: string): boolean {
  const place = condition.indexOf("=");
  const value = labels[condition.slice(0, place)] ?? "";
  const wanted = condition.slice(place + 1);
  if (!wanted.startsWith("~")) return value === wanted;
  try {
    return new RegExp(`^(?:${wanted.slice(1)})$`).test(value);
  } catch {
    throw new ApiError(`The regular expression ${wanted.slice(1)} is not valid.`, 400);
  }
}

/** Without grouping, a line has its own labels and its process. */
function shownLabels(line: SeriesSums, groups: readonly string[] | undefined): Record<string, string> {
  const every = everyLabel(line);
  if (groups === undefined || groups.includes("*")) return { ...line.labels, process_id: every["process_id"] ?? "" };
  return Object.fromEntries(groups.flatMap((label) => (every[label] ? [[label, every[label]]] : [])));
}

function mergedIntervals(
  lines: readonly SeriesSums[],
  query: RangeQuery,
  width: number,
  ratio: number,
): Map<number, Merged> {
  const found = new Map<number, Merged>();
  for (const line of lines) {
    line.x.forEach((x, place) => {
      const sum = lineValue(line.sum[place]);
      if (sum === null || !isWithin(x, query, width)) return;
      const count = line.count?.[place] ?? 1;
      const min = lineValue(line.min?.[place]) ?? sum;
      const max = lineValue(line.max?.[place]) ?? sum;
      const at = Math.floor(Math.round(x / width) / ratio) * ratio * width;
      const known = found.get(at);
      if (known === undefined) {
        found.set(at, { sum, count, min, max });
        return;
      }
      known.sum += sum;
      known.count += count;
      known.min = smaller(known.min, min);
      known.max = Math.max(known.max, max);
    });
  }
  return found;
}

/** NaN is the largest value, as in the store. */
function smaller(one: number, other: number): number {
  if (Number.isNaN(one)) return other;
  return Number.isNaN(other) ? one : Math.min(one, other);
}
