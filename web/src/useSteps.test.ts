import { expect, test } from "vitest";
import { joinSteps } from "./useSteps";

const rows = (...steps: number[]) => steps.map((step) => ({ step }));

test("new data of the newest steps replaces the old", () => {
  const known = [
    { step: 1, from: "old" },
    { step: 2, from: "old" },
    { step: 3, from: "old" },
  ];
  const news = [
    { step: 3, from: "new" },
    { step: 4, from: "new" },
  ];
  expect(joinSteps(known, news, 10)).toEqual([known[0], known[1], ...news]);
});

test("only the latest are kept", () => {
  expect(joinSteps(rows(1, 2, 3), rows(4, 5), 3)).toEqual(rows(3, 4, 5));
});

test("no new data changes nothing", () => {
  expect(joinSteps(rows(1, 2), [], 10)).toEqual(rows(1, 2));
  expect(joinSteps([], [], 10)).toEqual([]);
});
