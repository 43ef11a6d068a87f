import { describe, expect, it } from "vitest";
import { type HeatMapData, type Layout, cellAt, cellBox, heatColor, shareOf } from "./heatMapDrawing";

const data: HeatMapData = {
  x: [0, 10, 30],
  width: 10,
  rows: ["a", "b"],
  values: [
    [1, 2, 3],
    [4, null, 6],
  ],
};
const layout: Layout = { width: 140, height: 60, left: 100, bottom: 20 };

describe("cellAt", () => {
  it("finds the cell that cellBox draws", () => {
    for (let row = 0; row < 2; row += 1) {
      for (let column = 0; column < 3; column += 1) {
        const box = cellBox(data, layout, { row, column });
        expect(cellAt(data, layout, box.x + box.width / 2, box.y + box.height / 2)).toEqual({ row, column });
      }
    }
  });
  it("finds nothing where nothing was recorded", () => expect(cellAt(data, layout, 125, 5)).toBeNull());
  it("finds nothing outside the map", () => {
    expect(cellAt(data, layout, 50, 5)).toBeNull();
    expect(cellAt(data, layout, 120, 50)).toBeNull();
  });
});

describe("colors", () => {
  it("stay inside the scale", () => {
    expect(heatColor(-1, "light")).toBe(heatColor(0, "light"));
    expect(heatColor(2, "dark")).toBe(heatColor(1, "dark"));
  });
  it("grow with the value", () => {
    expect(shareOf(5, [0, 10], false)).toBe(0.5);
    expect(shareOf(1, [0, 1000], true)).toBeGreaterThan(shareOf(1, [0, 1000], false));
    expect(shareOf(3, [3, 3], false)).toBe(0);
  });
});
