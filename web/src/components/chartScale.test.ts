import { expect, test } from "vitest";
import { xRange } from "./chartScale";

test("a single point is in the middle of a short axis", () => {
  expect(xRange([1_794_807_048], "time", false)).toEqual([1_794_807_018, 1_794_807_078]);
  expect(xRange([7], "step", false)).toEqual([6, 8]);
});

test("lines use the full width, bars have room at both ends, no data has no axis", () => {
  expect(xRange([3, 5, 9], "step", false)).toEqual([3, 9]);
  expect(xRange([3, 5, 9], "step", true)).toEqual([2.4, 9.6]);
  expect(xRange([], "time", false)).toEqual([null, null]);
});
