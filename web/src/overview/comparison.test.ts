import { expect, test } from "vitest";
import { comparisonText, wholeSteps } from "./stepTimes";
import { wrongPlaces } from "../lines";

const compared = (wall_s: number, usual_s: number, neighbors = 32) => ({
  ...{ step: 37, role: "trainer", start_ns: 0, end_ns: wall_s * 1e9, usual_ns: usual_s * 1e9, neighbors },
  phases: [
    { name: "save_checkpoint", wall_ns: (wall_s - usual_s) * 1e9, usual_ns: 0 },
    { name: "update", wall_ns: usual_s * 1e9, usual_ns: usual_s * 1e9 },
  ],
  inside: [],
});

test("the comparison of a step with a typical one is a sentence", () => {
  expect(comparisonText(compared(55, 24))).toBe(
    "Step 37 took 55.0 s, 31.0 s longer than usual: save_checkpoint took 31.0 s, usually 0 s.",
  );
  expect(comparisonText(compared(24, 24))).toBe("Step 37 took 24.0 s, as usual.");
  expect(comparisonText(compared(24, 24, 0))).toContain("no other step");
});

test("a drag over an axis of steps selects the steps that it touches", () => {
  expect(wholeSteps(36.7, 39.2)).toEqual([37, 39]);
  expect(wholeSteps(-0.4, 0.2)).toEqual([0, 0]);
  expect(wholeSteps(36.6, 37.4)).toEqual([37, 37]);
});

test("NaN has a position", () => {
  expect(wrongPlaces([148, 149, 150], [[1, 2, NaN], [1, null, 3]])).toEqual([150]); // prettier-ignore
});
