import { describe, expect, it } from "vitest";
import type { RunSummary } from "../../api";
import { rangeOf, roundWidth, stepWidth } from "./range";

const summary = { start_ns: 1000e9, end_ns: 1600e9, first_step: 0, last_step: 999 } as RunSummary;
const whole = { recent: "", from: 0, to: 0 } as const;

describe("rangeOf", () => {
  it("covers the whole run in whole intervals", () => {
    const range = rangeOf(summary, whole, 200)!;
    expect(range.width).toBe(5e9);
    expect(range.start_ns % range.width).toBe(0);
    expect(range.start_ns).toBeLessThanOrEqual(1000e9);
    expect(range.end_ns).toBeGreaterThan(1600e9);
  });
  it("covers the last minutes", () =>
    expect(rangeOf(summary, { ...whole, recent: "60" }, 60)).toEqual({ start_ns: 1540e9, end_ns: 1601e9, width: 1e9 }));
  it("prefers a chosen window", () =>
    expect(rangeOf(summary, { recent: "60", from: 10, to: 20 }, 10)).toEqual({
      start_ns: 10e9,
      end_ns: 21e9,
      width: 1e9,
    }));
  it("is empty before the run has begun", () => expect(rangeOf({ ...summary, start_ns: null }, whole, 10)).toBeNull());
  it("repeats the query while a run grows within an interval", () => {
    const grown = { ...summary, end_ns: 1601e9 };
    expect(rangeOf(grown, whole, 200)).toEqual(rangeOf(summary, whole, 200));
  });
});

describe("widths", () => {
  it("are round", () => expect(roundWidth(3600e9, 200)).toBe(30e9));
  it("keep the points of a run of milliseconds apart", () => expect(roundWidth(3e6, 240)).toBe(20_000));
  it("hold for years too", () => expect(roundWidth(365 * 86_400e9, 10)).toBe(37 * 86_400e9));
  it("bound the number of visible steps", () => expect(stepWidth(summary, 500)).toBe(2));
});
