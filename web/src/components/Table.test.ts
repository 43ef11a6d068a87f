import { describe, expect, it } from "vitest";
import { leastWidth } from "./Table";

describe("leastWidth", () => {
  it("adds up what the columns need at least", () => {
    expect(leastWidth([{ width: "120px" }, { width: "minmax(200px, 2fr)" }, {}])).toBe(400);
  });
});
