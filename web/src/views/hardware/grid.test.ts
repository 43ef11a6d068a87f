import { describe, expect, it } from "vitest";
import type { Line } from "../../api";
import { deviceName, gridOf } from "./grid";

const line = (host: string, gpu: string, y: (number | null)[]): Line => ({
  labels: { host, gpu },
  x: y.map((_, index) => index * 1e9),
  y,
});

describe("gridOf", () => {
  it("sorts accelerators by node and number, 10 after 9", () => {
    const grid = gridOf([line("b", "0", [1]), line("a", "10", [2]), line("a", "9", [3])], 1e9);
    expect(grid.rows).toEqual(["a · GPU 9", "a · GPU 10", "b · GPU 0"]);
    expect(grid.values).toEqual([[3], [2], [1]]);
  });
  it("returns shares of totals, and nothing if a total is unknown", () => {
    const grid = gridOf([line("a", "0", [20, 40]), line("a", "1", [5, 5])], 1e9, [line("a", "0", [80, 80])]);
    expect(grid.values).toEqual([
      [0.25, 0.5],
      [null, null],
    ]);
  });
});

describe("deviceName", () => {
  it("works without an accelerator", () => expect(deviceName({ node: "n" })).toBe("n"));
});
