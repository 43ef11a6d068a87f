import { describe, expect, it } from "vitest";
import { leastWidth } from "./Table";

describe("leastWidth", () => {
  it("adds up the minimum widths of the columns", () => {
    expect(leastWidth([{ width: "120px" }, { width: "minmax(200px, 2fr)" }, {}])).toBe(400);
  });
});
