import { describe, expect, it } from "vitest";
import { binsOf, meanOf, median, placeInBins, quantile, quantileLines, spreadOf } from "./statistics";

describe("quantile", () => {
  it("interpolates between neighbors", () => {
    expect(quantile([1, 2, 3, 4], 0.5)).toBe(2.5);
    expect(quantile([1, 2, 3, 4], 1)).toBe(4);
  });
  it("returns null without values", () => expect(quantile([], 0.5)).toBeNull());
});

describe("meanOf", () => {
  it("is of what is known: unknown is not 0", () => {
    expect(meanOf([1, null, 3])).toBe(2);
    expect(meanOf([null])).toBeNull();
  });
});

describe("median", () => {
  it("is between the middle values, and not a number without any", () => {
    expect(median([3, 1, 2, 10])).toBe(2.5);
    expect(median([])).toBeNaN();
  });
});

describe("spreadOf", () => {
  it("ignores NaN", () => {
    const spread = spreadOf([3, null, 1, undefined, Number.NaN, 2]);
    expect(spread.count).toBe(3);
    expect(spread.p50).toBe(2);
    expect(spread.max).toBe(3);
  });
});

describe("binsOf", () => {
  it("counts every value once", () => {
    const values = Array.from({ length: 1000 }, (_, index) => index / 10);
    const bins = binsOf(values, 20);
    expect(bins).toHaveLength(20);
    expect(bins.reduce((sum, bin) => sum + bin.count, 0)).toBe(1000);
  });
  it("uses powers for values over several decades, so that a long tail does not hide the rest", () => {
    const bins = binsOf([0.001, 0.02, 0.2, 2, 10], 4);
    expect(bins.map((bin) => bin.count)).toEqual([1, 1, 1, 2]);
  });
  it("makes one bin of equal values", () => expect(binsOf([2, 2], 10)).toEqual([{ from_s: 2, to_s: 2, count: 2 }]));
  it("places a value on the bins' own scale", () => {
    const bins = binsOf([0.001, 0.02, 0.2, 2, 10], 4);
    expect(placeInBins(bins, 0.001)).toBeCloseTo(0);
    expect(placeInBins(bins, 10)).toBeCloseTo(1);
    expect(placeInBins(bins, 99)).toBe(1);
  });
});

describe("quantileLines", () => {
  it("are horizontal", () => {
    const lines = quantileLines(2, 2.9, 3);
    expect(lines.map((line) => [line.label, line.values])).toEqual([
      ["p50", [2, 2, 2]],
      ["p95", [2.9, 2.9, 2.9]],
    ]);
  });
});
