import { expect, test } from "vitest";
import type { RangeQuery } from "../api";
import { Metrics } from "./metrics";

const SECOND = 1e9;
const line = (labels: Record<string, string>, y: (number | null)[]) => ({
  labels,
  x: y.map((_, index) => index * SECOND),
  y,
});
const metric = (name: string, kind: string, labels: string[] = []) => ({
  name,
  kind,
  documentation: "",
  series: 2,
  labels,
});
const lines = (name: string, time: ReturnType<typeof line>[]) => ({
  name,
  width_ns: SECOND,
  step_width: 1,
  time,
  steps: [],
  time_spread: null,
  step_spread: null,
});

const metrics = new Metrics(
  [metric("gauge", "gauge", ["task"]), metric("count", "counter"), metric("dist", "histogram")],
  [
    lines("gauge", [
      line({ task: "add", process_id: "p", host: "n1" }, [1, 3, null]),
      line({ task: "mul", process_id: "q", host: "n2" }, [5, 7, 9]),
    ]),
    lines("count", [line({ process_id: "p" }, [10, 20]), line({ process_id: "q" }, [1, 1])]),
    {
      ...lines("dist", [line({ quantile: "0.5" }, [1, 2]), line({ quantile: "0.99" }, [5, 6])]),
      time_spread: { x: [0, 2 * SECOND], lower: [1], upper: [2], counts: [[4], [5]] },
    },
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
  expect(() => metrics.quantiles({ ...whole("dist"), group_by: ["role"] })).toThrow("of all series combined");
});
