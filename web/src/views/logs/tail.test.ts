import { describe, expect, it } from "vitest";
import type { LogLine } from "../../api";
import { mergeLines } from "./tail";

const line = (time_ns: number, message: string): LogLine => ({
  time_ns,
  message,
  level: 20,
  logger: null,
  span_id: null,
  step: null,
  session_id: null,
  attributes: {},
  process_id: "p",
  role: "",
  rank: null,
  lane: null,
  lane_id: 0,
});

describe("mergeLines", () => {
  it("shows a line that was requested twice once", () => {
    expect(
      mergeLines([line(3, "c"), line(2, "b")], [line(2, "b"), line(1, "a")], 10).map((one) => one.message),
    ).toEqual(["c", "b", "a"]);
  });
  it("puts a late line where it belongs", () => {
    expect(mergeLines([line(2, "late")], [line(3, "c"), line(1, "a")], 10).map((one) => one.message)).toEqual([
      "c",
      "late",
      "a",
    ]);
  });
  it("keeps two lines with the same time separate", () =>
    expect(mergeLines([line(1, "a"), line(1, "b")], [], 10)).toHaveLength(2));
  it("forgets the oldest beyond the bound", () =>
    expect(mergeLines([line(3, "c")], [line(2, "b"), line(1, "a")], 2).map((one) => one.message)).toEqual(["c", "b"]));
});
