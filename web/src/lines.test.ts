import { describe, expect, it } from "vitest";
import { align, csvCell, quantileName, toCsv } from "./lines";

describe("align", () => {
  it("leaves gaps where a line has no value, and where JSON had none for it", () => {
    const found = align([
      { labels: { gpu: "0" }, x: [1, 2], y: [10, 20] },
      { labels: { gpu: "1" }, x: [2, 3], y: ["NaN", 30] },
    ]);
    expect(found.x).toEqual([1, 2, 3]);
    expect(found.lines.map((line) => line.values)).toEqual([
      [10, 20, null],
      [null, NaN, 30],
    ]);
  });
  it("names lines by the labels that distinguish them", () => {
    const found = align([
      { labels: { gpu: "0", host: "a", process_id: "x" }, x: [], y: [] },
      { labels: { gpu: "1", host: "a", process_id: "y" }, x: [], y: [] },
    ]);
    expect(found.lines.map((line) => line.label)).toEqual(["gpu=0", "gpu=1"]);
  });
  it("drops a redundant label", () => {
    const line = (gpu: string, host: string) => ({ labels: { gpu, host, node: host }, x: [], y: [] });
    const found = align([line("0", "a"), line("1", "a"), line("0", "b")]);
    expect(found.lines.map((one) => one.label)).toEqual(["gpu=0 node=a", "gpu=1 node=a", "gpu=0 node=b"]);
  });
  it("shows the process where nothing else distinguishes lines", () => {
    const found = align([
      { labels: { process_id: "x" }, x: [], y: [] },
      { labels: { process_id: "y" }, x: [], y: [] },
    ]);
    expect(found.lines.map((line) => line.label)).toEqual(["process_id=x", "process_id=y"]);
  });
  it("calls a single line by the given name", () => {
    expect(align([{ labels: { a: "1" }, x: [1], y: [1] }], "reward").lines[0]?.label).toBe("reward");
  });
});

describe("CSV", () => {
  it.each([
    ["plain", "plain"],
    ['a "b", c', '"a ""b"", c"'],
    ["=SUM(A1)", "'=SUM(A1)"],
    ["two\nlines", '"two\nlines"'],
  ])("writes %j safely", (text, cell) => expect(csvCell(text)).toBe(cell));
  it("has a row for each x and an empty cell for a gap", () => {
    expect(toCsv([1, 2], "step", [{ label: "a", values: [5, null] }])).toBe("step,a\n1,5\n2,\n");
  });
});

describe("quantileName", () => {
  it.each([
    ["0.5", "p50"],
    ["0.999", "p99.9"],
  ])("calls %s %s", (share, name) => expect(quantileName(share)).toBe(name));
});
