import { describe, expect, it } from "vitest";
import { fitting, leastWidth } from "./Table";

describe("leastWidth", () => {
  it("adds up the minimum widths of the columns", () => {
    expect(leastWidth([{ width: "120px" }, { width: "minmax(200px, 2fr)" }, {}])).toBe(400);
  });
});

describe("fitting", () => {
  const columns = [
    { width: "100px" },
    { width: "80px", isSpare: true },
    { width: "minmax(60px, 1fr)", isSpare: true },
    { width: "90px" },
  ];
  it("leaves out spare columns where there is no room, the last first", () => {
    expect([330, 329, 269, 100].map((width) => fitting(columns, width).map((one) => columns.indexOf(one)))).toEqual([
      [0, 1, 2, 3],
      [0, 1, 3],
      [0, 3],
      [0, 3],
    ]);
  });
});
