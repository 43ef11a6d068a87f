import { expect, test } from "vitest";
import type { MetricLines, RangeQuery, SeriesSums } from "../api";
import { Metrics } from "./metrics";

const SECOND = 1e9;
const series = (labels: Record<string, string>, process: Record<string, string>, sum: (number | string)[]) => ({
  labels,
  process,
  x: sum.map((_, index) => index * SECOND),
  sum,
});
const metric = (name: string, kind: string, labels: string[] = []) => ({
  name,
  kind,
  documentation: "",
  series: 2,
  labels,
  quantity: null,
  interest: 0,
  is_hardware: false,
});
const lines = (name: string, time: SeriesSums[], parts: Partial<MetricLines> = {}): MetricLines => ({
  name,
  width_ns: SECOND,
  step_width: 1,
  is_apart: true,
  time,
  steps: [],
  time_quantiles: [],
  step_quantiles: [],
  ...parts,
});
const quantile = (share: string, y: number[]) => ({
  labels: { quantile: share },
  x: y.map((_, index) => index * SECOND),
  y,
});

const metrics = new Metrics(
  [
    metric("gauge", "gauge", ["task"]),
    metric("busy", "gauge"),
    metric("count", "counter"),
    metric("dist", "histogram"),
    metric("many", "gauge"),
  ],
  [
    lines("gauge", [
      series({ task: "add" }, { process_id: "p", host: "n1" }, [1, 3]),
      series({ task: "mul" }, { process_id: "q", host: "n2" }, [5, 7, 9]),
    ]),
    // Values of two series: 0 and 0.9 in the first second of one, 0.6 in every second of the other.
    lines("busy", [
      { ...series({}, { process_id: "p" }, [0.9, "NaN"]), count: [2, 1], min: [0, "NaN"], max: [0.9, "NaN"] },
      series({}, { process_id: "q" }, [0.6, 0.6]),
    ]),
    lines("count", [series({}, { process_id: "p" }, [10, 20]), series({}, { process_id: "q" }, [1, 1])]),
    lines("dist", [], {
      is_apart: false,
      time_quantiles: [quantile("0.5", [1, 2]), quantile("0.99", [5, 6])],
      time_spread: { x: [0, 2 * SECOND], lower: [1], upper: [2], counts: [[4], [5]] },
    }),
    lines("many", [{ ...series({}, {}, [4]), count: [2], min: [1], max: [3] }], { is_apart: false }),
  ],
);
const whole = (name: string, more: Partial<RangeQuery> = {}): RangeQuery => ({
  metric: name,
  start_ns: 0,
  end_ns: 10 * SECOND,
  width: SECOND,
  ...more,
});

test("series stay apart by their own labels and process", () => {
  const found = metrics.range(whole("gauge", { group_by: ["*"] }));
  expect(found.map((one) => [one.labels, one.y])).toEqual([
    [{ task: "add", process_id: "p" }, [1, 3]],
    [{ task: "mul", process_id: "q" }, [5, 7, 9]],
  ]);
});

test("gauges are averaged and counters are summed, in wider intervals too", () => {
  expect(metrics.range(whole("gauge", { group_by: [""], width: 2 * SECOND }))).toEqual([
    { labels: {}, x: [0, 2 * SECOND], y: [4, 9] },
  ]);
  expect(metrics.range(whole("gauge", { group_by: [""], aggregation: "min" }))[0]?.y).toEqual([1, 3, 9]);
  expect(metrics.range(whole("count", { group_by: [""], width: 2 * SECOND }))).toEqual([
    { labels: {}, x: [0], y: [16] },
  ]);
  expect(metrics.range(whole("count", { group_by: [""], aggregation: "increase" }))[0]?.y).toEqual([11, 21]);
});

test("an average counts every value, and the least is the least value", () => {
  const busy = (aggregation: RangeQuery["aggregation"], width = SECOND) =>
    metrics.range(whole("busy", { group_by: [""], aggregation, width }))[0]?.y;
  expect(busy("avg")).toEqual([0.5, NaN]);
  expect(busy("min")).toEqual([0, 0.6]);
  expect(busy("min", 2 * SECOND)).toEqual([0]);
  expect(busy("max")).toEqual([0.9, NaN]);
  expect(busy("count", 2 * SECOND)).toEqual([5]);
});

test("what sums cannot answer is refused", () => {
  expect(() => metrics.range(whole("gauge", { aggregation: "last" }))).toThrow("this aggregation");
  expect(() => metrics.range(whole("gauge", { smoothing: 0.9 }))).toThrow("this aggregation");
  expect(metrics.range(whole("many", { group_by: [""] }))[0]?.y).toEqual([2]);
  expect(() => metrics.range(whole("many"))).toThrow("all series of this metric combined");
  expect(() => metrics.range(whole("many", { group_by: [""], match: ["host=n1"] }))).toThrow("combined");
});

test("filters and windows keep what matches", () => {
  expect(metrics.range(whole("gauge", { match: ["task=add"] })).length).toBe(1);
  expect(metrics.range(whole("gauge", { match: ["host=~n."] })).length).toBe(2);
  expect(metrics.range(whole("gauge", { group_by: ["host"], start_ns: 2 * SECOND }))).toEqual([
    { labels: { host: "n2" }, x: [2 * SECOND], y: [9] },
  ]);
  expect(() => metrics.range(whole("gauge", { match: ["host=~("] }))).toThrow("is not valid");
  expect(metrics.labelValues("task", "gauge")).toEqual(["add", "mul"]);
});

test("an interval that a short window is within is shown", () => {
  const window = { start_ns: 1.2 * SECOND, end_ns: 1.4 * SECOND, width: SECOND / 10 };
  expect(metrics.range(whole("gauge", { ...window, group_by: ["host"] })).map(({ x, y }) => [x, y])).toEqual([
    [[SECOND], [3]],
    [[SECOND], [7]],
  ]);
});

test("quantiles and spreads are clipped to the window, and reject filters", () => {
  expect(metrics.quantiles({ ...whole("dist"), share: [0.99], start_ns: SECOND })).toEqual([
    { labels: { quantile: "0.99" }, x: [SECOND], y: [6] },
  ]);
  expect(metrics.heatMap({ ...whole("dist"), end_ns: SECOND })).toEqual({
    x: [0],
    lower: [1],
    upper: [2],
    counts: [[4]],
  });
  expect(() => metrics.quantiles({ ...whole("dist"), group_by: ["role"] })).toThrow(
    "all series of this metric combined",
  );
});
