import { expect, test } from "vitest";
import type { Lane } from "../api";
import { type Arrangement, arrangeLanes, evenLanes, isFolded, lanesBetween, sameRowAt, sortLanes } from "./layout";

const lane = (lane_id: number, role: string, rank: number, host: string, name: string | null = null): Lane => ({
  ...{ lane_id, role, rank, host, lane: name, process_id: `${role}-${rank}` },
  ...{ spans: 1, open_spans: 0, first_ns: 0, last_ns: 1 },
});
const LANES = [
  lane(0, "rollout", 10, "node-2", "rank_10"),
  lane(1, "rollout", 2, "node-10", "rank_2"),
  lane(2, "trainer", 0, "node-1"),
];
const arranged = (change: Partial<Arrangement>) => {
  const arrangement: Arrangement = { grouping: "process", order: "usual", pinned: new Set(), ...change };
  const sorted = sortLanes(LANES, arrangement);
  const { rows } = arrangeLanes(sorted, new Map(), { all: false, keys: new Set() }, "normal", arrangement);
  return rows.map((row) => (row.kind === "group" ? `[${row.title}]` : row.title));
};

test("lanes are grouped by role and node, in natural order", () => {
  expect(arranged({ grouping: "role", order: "name" })).toEqual([
    ...["[rollout]", "rollout 2 rank_2", "rollout 10 rank_10"],
    ...["[trainer]", "trainer 0"],
  ]);
  expect(arranged({ grouping: "node" })).toEqual([
    ...["[node-1]", "trainer 0"],
    ...["[node-2]", "rollout 10 rank_10"],
    ...["[node-10]", "rollout 2 rank_2"],
  ]);
  expect(arranged({ grouping: "none", order: "rank" })).toEqual([
    "trainer 0",
    "rollout 2 rank_2",
    "rollout 10 rank_10",
  ]);
});

test("pinned lanes are on top, with their process in their name", () => {
  expect(arranged({ pinned: new Set([0]) }).slice(0, 2)).toEqual(["[Pinned]", "rollout 10 rank_10"]);
});

test("with all groups folded, those named are open", () => {
  expect(isFolded({ all: true, keys: new Set() }, "a")).toBe(true);
  expect(isFolded({ all: true, keys: new Set(["a"]) }, "a")).toBe(false);
  expect(isFolded({ all: false, keys: new Set(["a"]) }, "a")).toBe(true);
});

const tall = (count: number, lines: readonly [number, number][] = []) =>
  arrangeLanes(
    Array.from({ length: count }, (_, place) => lane(place, "rollout", place, "node-0")),
    new Map(lines),
    { all: false, keys: new Set() },
    "normal",
  );

test("the visible lanes are found among many", () => {
  const layout = tall(5000);
  const [first] = layout.rows.filter((row) => row.kind === "lane" && row.lane.lane_id === 100);
  expect(lanesBetween(layout, first!.y, first!.y + 100)).toEqual([100, 101, 102]);
  expect(lanesBetween(layout, -500, 1)).toEqual([]);
});

test("a minimap of many lanes has some of them, evenly spread", () => {
  expect(evenLanes(tall(3), 200)).toEqual([0, 1, 2]);
  const some = evenLanes(tall(5000), 200);
  expect(some).toHaveLength(200);
  expect(some.slice(0, 3)).toEqual([0, 25, 50]);
});

test("visible content stays in place when a lane above it grows", () => {
  const [before, after] = [tall(10), tall(10, [[2, 5]])];
  const y = before.rows.find((row) => row.kind === "lane" && row.lane.lane_id === 7)!.y;
  expect(sameRowAt(before, after, y + 3)).toBe(y + 3 + 5 * 16);
  expect(sameRowAt(before, after, 0)).toBe(0);
});
