import { expect, test } from "vitest";
import { axisWidth, xRange } from "./chartScale";

test("a single point is in the middle of a short axis", () => {
  expect(xRange([1_794_807_048], "time", false)).toEqual([1_794_807_018, 1_794_807_078]);
  expect(xRange([7], "step", false)).toEqual([6, 8]);
});

test("lines use the full width, bars have room at both ends, no data has no axis", () => {
  expect(xRange([3, 5, 9], "step", false)).toEqual([3, 9]);
  expect(xRange([3, 5, 9], "step", true)).toEqual([2.4, 9.6]);
  expect(xRange([], "time", false)).toEqual([null, null]);
});

test("gives long labels room, and others the same", () => {
  expect([null, ["0 s", "20.0 s"]].map(axisWidth)).toEqual([62, 62]);
  expect(axisWidth(["0 s", "25 min 00 s"])).toBeGreaterThan(80);
});
