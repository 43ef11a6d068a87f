import { expect, test } from "vitest";
import { tickText, valueAt } from "./drawAxis";
import { flowsOf } from "./drawOver";
import { ticks } from "./geometry";

test.each([50e3, 5e3, 1e3])("ticks of a window of %d ns are all different", (size) => {
  const window = { start: 478_123_456, end: 478_123_456 + size };
  const { distance, times } = ticks(window, 1000);
  const texts = times.map((time) => tickText(1_700_000_000e9, time, distance));
  expect(times.length).toBeGreaterThan(3);
  expect(new Set(texts).size).toBe(texts.length);
});

test("a strip's value is valid until the next one", () => {
  const line = { label: "", color: "", x: Float64Array.of(10, 20), y: Float64Array.of(1, 9) };
  expect([5, 10, 19, 20, 99].map((time) => valueAt(line, time))).toEqual([null, 1, 1, 9, 9]);
});

test("arrows lead from the parent and to the children that ran on other lanes", () => {
  const span = (span_id: string, lane_id: number, start_ns: number) => ({ span_id, lane_id, start_ns });
  const found = flowsOf(span("b", 2, 110), span("a", 1, 105), [span("c", 2, 115), span("d", 3, 120)], 100);
  expect(found).toEqual([
    { fromLane: 1, fromTime: 10, toLane: 2, toTime: 10 },
    { fromLane: 2, fromTime: 20, toLane: 3, toTime: 20 },
  ]);
});
