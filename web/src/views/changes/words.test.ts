import { expect, test } from "vitest";
import type { Change } from "../../api";
import { changeText } from "./words";

const change = (fields: Partial<Change>): Change => ({
  kind: "metric",
  name: "reward",
  shape: "shift",
  step: 60,
  before: 0.6,
  after: 0.3,
  score: 9,
  detail: {},
  ...fields,
});

test("a change is its levels and their relation", () => {
  expect(changeText(change({}), String)).toBe("0.6 → 0.3 (−50%)");
  expect(changeText(change({ before: 0, after: 4 }), String)).toBe("0 → 4");
  expect(changeText(change({ shape: "spike", before: 10, after: 41 }), String)).toBe(
    "10 → 41 (+310%), in one step alone",
  );
  expect(changeText(change({ after: null, detail: { value: "NaN" } }), String)).toBe("0.6 → NaN");
});

test("an event shows its attributes", () => {
  expect(changeText(change({ shape: "event", detail: { lr: 1e-5 } }), String)).toBe("lr: 0.00001");
  expect(changeText(change({ shape: "event" }), String)).toBe("happened");
});
