import { describe, expect, it, test } from "vitest";
import type { Lane } from "../api";
import { filterLanes, fitsPlaces, fitsWords, parseTimelineSearch } from "./search";

const lane = (lane_id: number, role: string, rank: number, host: string, name: string | null = null): Lane => ({
  ...{ lane_id, role, rank, host, lane: name, process_id: `run-${role}-${rank}` },
  ...{ spans: 1, open_spans: 0, first_ns: 0, last_ns: 1 },
});
const LANES = [
  lane(0, "trainer", 0, "node-0"),
  lane(1, "rollout", 1, "node-2"),
  lane(2, "rollout", 17, "node-6"),
  lane(3, "rollout", 17, "node-6", "rollout_17/slot_1"),
  lane(4, "rollout", 170, "node-16"),
];
const found = (words: string) => LANES.filter((one) => fitsWords(one, words)).map((one) => one.lane_id);

describe("a search of the timeline", () => {
  it.each([
    ["status:error", { status: "error" }],
    ["longer:20s", { longer_than_ns: 20e9 }],
    ["longer:500ms name:tool", { longer_than_ns: 5e8, name_contains: "tool" }],
    ["error:ToolTimeout", { error: "ToolTimeout" }],
    ["session:s037-001 step:37", { session_id: "s037-001", step: 37 }],
    ["tool=search", { attribute: "tool=search" }],
    ['tool="a"', { attribute: "tool=a" }],
  ])("understands %s", (text, query) => {
    const parsed = parseTimelineSearch(text);
    expect(parsed).toMatchObject({ query, words: "", problem: null });
  });
  it("separates words from conditions on lanes", () => {
    expect(parseTimelineSearch("generate role:rollout rank:0-7")).toMatchObject({
      words: "generate",
      places: [
        ["role", "rollout"],
        ["rank", "0-7"],
      ],
    });
  });
  it.each(["foo:bar", "status:nice", "longer:soon", "step:x"])("describes the error in %s", (text) =>
    expect(parseTimelineSearch(text).problem).toMatch(/^(unknown|cannot parse)/),
  );
  it("treats a URL as text", () => expect(parseTimelineSearch("http://x").words).toBe("http://x"));
});

test("lanes are found by process, host and name, without false matches", () => {
  expect(found("rollout 17")).toEqual([2, 3]);
  expect(found("rollout 1")).toEqual([1]);
  expect(found("node-6")).toEqual([2, 3]);
  expect(found("slot_1")).toEqual([3]);
  expect(found("nothing")).toEqual([]);
});

test("lanes are filtered by role, rank and node", () => {
  const ids = (filter: string) => filterLanes(LANES, filter).map((one) => one.lane_id);
  expect(ids("")).toEqual([0, 1, 2, 3, 4]);
  expect(ids("role:rollout rank:0-20")).toEqual([1, 2, 3]);
  expect(ids("node:node-6")).toEqual([2, 3]);
  expect(ids("roll 17 slot")).toEqual([3]);
  expect(fitsPlaces(LANES[0]!, [["rank", "0"]])).toBe(true);
});
