import { expect, test } from "vitest";

import { kindOf } from "./metricKinds";

test("kinds say how they are shown, and an unknown one is shown as plain values", () => {
  expect(kindOf("counter").isRate).toBe(true);
  expect(kindOf("histogram").isDistribution).toBe(true);
  expect(kindOf("summary")).toEqual({ short: "summary", isRate: false, isDistribution: false });
});
