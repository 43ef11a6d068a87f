import { expect, test } from "vitest";
import { durationsByStep } from "./durations";

test("durations are computed for each step in order, and bad outcomes are counted", () => {
  const sample = (step: number | null, total_s: number, status: string) => ({
    session_id: `${step} ${total_s}`,
    step,
    total_s,
    status,
  });
  const rows = durationsByStep([
    sample(2, 4, "accepted"),
    sample(1, 3, "failed"),
    sample(1, 1, "accepted"),
    sample(null, 9, "accepted"),
  ]);
  expect(rows).toEqual([
    { step: 1, count: 2, p50: 2, p95: 2.9, max: 3, failed: 1 },
    { step: 2, count: 1, p50: 4, p95: 4, max: 4, failed: 0 },
  ]);
});
