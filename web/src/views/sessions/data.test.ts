import { describe, expect, it } from "vitest";
import { merge } from "./data";

describe("merge", () => {
  it("keeps the newest where there are too many", () => {
    const first = merge(
      new Map(),
      [
        { session_id: "b", total_s: 2 },
        { session_id: "a", total_s: 1 },
      ],
      2,
    );
    const second = merge(first, [{ session_id: "c", total_s: 3 }], 2);
    expect([...second.keys()]).toEqual(["b", "c"]);
  });
  it("takes a session's latest word and counts it once", () => {
    const first = merge(new Map(), [{ session_id: "a", total_s: 1 }]);
    const second = merge(first, [{ session_id: "a", total_s: 5 }]);
    expect([...second.values()]).toEqual([{ session_id: "a", total_s: 5 }]);
  });
  it("leaves out sessions without a duration", () => expect(merge(new Map(), [{ session_id: "a" }]).size).toBe(0));
});
