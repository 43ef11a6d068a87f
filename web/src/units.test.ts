import { describe, expect, test } from "vitest";
import cases from "./unitCases.json";
import {
  formatClock,
  formatAgo,
  formatBytes,
  formatCount,
  formatDuration,
  formatMoment,
  formatNumber,
  formatSeconds,
  formatShare,
  metricFormatter,
  shorten,
  tickTexts,
} from "./units";

// The command line's tests read the same cases: both spell durations and sizes alike.
const durations = cases.durations as [number, string][];
const sizes = cases.sizes as [number, string][];

describe("durations have a natural unit", () => {
  test.each([...durations, [null, "–"], [undefined, "–"], [Number.NaN, "–"], [Number.POSITIVE_INFINITY, "–"]])(
    "%s ns is %s",
    (ns, text) => expect(formatDuration(ns)).toBe(text),
  );
});

test("unknown is not zero", () => {
  for (const format of [formatBytes, formatCount, formatNumber, formatSeconds, formatShare]) {
    expect(format(null)).toBe("–");
    expect(format(undefined)).toBe("–");
  }
});

test.each([
  [0, "0"],
  [0.1234, "0.123"],
  [5, "5"],
  [12.345, "12.3"],
  [1234, "1.23 k"],
  [999_999, "1 M"],
  [4_500_000, "4.5 M"],
  [1.2e-7, "1.2e-7"],
  [Number.NaN, "NaN"],
  [Number.NEGATIVE_INFINITY, "-Infinity"],
])("%s is written %s", (value, text) => expect(formatNumber(value)).toBe(text));

test.each(sizes)("%s bytes are %s", (bytes, text) => {
  expect(formatBytes(bytes)).toBe(text);
});

test.each([
  ["step_time_s", 0.25, "250 ms"],
  ["latency_seconds_p95", 2, "2.00 s"],
  ["memory_used_bytes", 1024, "1.00 KiB"],
  ["throughput_tokens_per_s", 1200, "1.2 k/s"],
  ["gpu_utilization_ratio", 0.31, "31 %"],
  ["ray_node_gpus_utilization", 31, "31 %"],
  ["reward_mean", 0.5, "0.5"],
  ["losses", 3, "3"],
])("the values of %s are written by the unit in its name", (name, value, text) => {
  expect(metricFormatter(name)(value)).toBe(text);
});

test("shares have a decimal only where it matters", () => {
  expect([0, 0.004, 0.31, 1].map(formatShare)).toEqual(["0 %", "0.4 %", "31 %", "100 %"]);
});

test("a full second stays one, though its nanoseconds are not exact as a number", () => {
  const ns = new Date("2026-11-18T08:15:00").getTime() * 1e6;
  expect([ns - 256, ns, ns + 256].map((at) => formatClock(at))).toEqual(["08:15:00", "08:15:00", "08:15:00"]);
});

test("ages are counted from now", () => {
  expect(formatAgo(1e18, 1e18 + 12e9)).toBe("12 s ago");
  expect(formatAgo(1e18, 1e18)).toBe("just now");
});

test("long text is truncated, short text is not", () => {
  expect(shorten("x".repeat(10_000), 10)).toHaveLength(10);
  expect(shorten("</script>", 10)).toBe("</script>");
});

describe("times of another day show the day", () => {
  const at = (text: string) => new Date(text).getTime() * 1e6;
  const today = at("2026-03-05T12:00:00");

  test("in a text", () => {
    expect(formatMoment(at("2026-03-05T09:30:00"), today)).toBe("09:30:00");
    expect(formatMoment(at("2026-03-04T09:30:00"), today)).toBe("03-04 09:30:00");
    expect(formatMoment(at("2025-03-05T09:30:00"), today)).toBe("03-05 09:30:00");
  });

  test("along an axis, once for each day", () => {
    const times = ["2026-03-03T22:00:00", "2026-03-03T23:00:00", "2026-03-04T00:00:00", "2026-03-04T01:00:00"].map(at);
    expect(tickTexts(times, today)).toEqual(["03-03 22:00", "23:00:00", "03-04 00:00", "01:00:00"]);
    expect(tickTexts([at("2026-03-05T09:30:00")], today)).toEqual(["09:30:00"]);
  });

  test("along a short axis, no two are the same", () => {
    const times = ["2026-03-05T09:30:00.000", "2026-03-05T09:30:00.500", "2026-03-05T09:30:01.000"].map(at);
    expect(tickTexts(times, today)).toEqual(["09:30:00.000", "09:30:00.500", "09:30:01.000"]);
  });
});
