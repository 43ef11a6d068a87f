import { describe, expect, test } from "vitest";
import type { Lane, Timeline } from "../api";
import { arrange, blockAt, firstAfter, lastLines } from "./blocks";
import { type Folding, arrangeLanes, lineAt, laneTitle, rowAt, sortLanes } from "./layout";

const folded = (...keys: string[]): Folding => ({ all: false, keys: new Set(keys) });

type Row = {
  lane: number;
  depth?: number;
  name: string;
  start: number;
  end: number;
  count?: number;
  busy?: number;
  open?: boolean;
  errors?: number;
  parent?: number;
};

function timeline(rows: Row[], window = { start: 0, end: 1000 }): Timeline {
  const names = [...new Set(rows.map((row) => row.name))];
  return {
    start_ns: window.start,
    end_ns: window.end,
    pixel_ns: 1,
    names,
    lane_id: rows.map((row) => row.lane),
    depth: rows.map((row) => row.depth ?? 0),
    name: rows.map((row) => names.indexOf(row.name)),
    block_start_ns: rows.map((row) => row.start),
    block_end_ns: rows.map((row) => row.end),
    count: rows.map((row) => row.count ?? 1),
    busy_ns: rows.map((row) => row.busy ?? row.end - row.start),
    errors: rows.map((row) => row.errors ?? 0),
    open: rows.map((row) => row.open ?? false),
    span_id: rows.map((_, index) => `id${index}`),
    parent: rows.map((row) => row.parent ?? -1),
  };
}

function lane(
  lane_id: number,
  role: string,
  rank: number | null,
  name: string | null,
  process_id = `${role}${rank}`,
): Lane {
  return {
    lane_id,
    lane: name,
    process_id,
    role,
    rank,
    host: "node",
    spans: 1,
    open_spans: 0,
    first_ns: 0,
    last_ns: 1,
  };
}

describe("the block under the pointer", () => {
  const blocks = arrange(
    timeline([
      { lane: 1, name: "long", start: 0, end: 900 },
      { lane: 1, name: "short", start: 100, end: 110 },
      { lane: 1, depth: 1, name: "inner", start: 200, end: 300, parent: 0 },
      { lane: 2, name: "running", start: 500, end: 600, open: true },
    ]),
    0,
  );
  test.each([
    [1, 2, 105, "short"],
    [1, 0, 105, "long"],
    [1, 0, 500, "long"],
    [1, 0, 950, undefined],
    [1, 1, 250, "inner"],
    [1, 1, 301, "inner"],
    [1, 1, 320, undefined],
    [2, 0, 499, "running"],
    [2, 0, 700, undefined],
    [3, 0, 100, undefined],
  ])("lane %d, line %d, time %d: %s", (laneId, depth, time, name) => {
    expect(blockAt(blocks, laneId, depth, time, 2)?.name).toBe(name);
  });
  test("an open block has grown since the response", () => {
    expect(blockAt(blocks, 2, 0, 700, 0, 150)).toMatchObject({ name: "running", end: 750, isOpen: true });
  });
  test("lines and their order are found", () => {
    expect([...lastLines(blocks)]).toEqual([
      [1, 2],
      [2, 0],
    ]);
    expect(firstAfter(blocks.start, 0, 1, 50)).toBe(1);
    expect(blocks.latest).toBe(900);
  });
});

describe("lanes", () => {
  const lanes = [
    lane(1, "rollout", 0, "rollout_0/slot_0"),
    lane(2, "rollout", 0, "rollout_0/slot_1"),
    lane(3, "rollout", 1, null),
    lane(4, "trainer", 0, "trainer"),
  ];
  test("are named without the parts in their group's title", () => {
    expect(lanes.map(laneTitle)).toEqual(["slot_0", "slot_1", "process", "trainer"]);
  });
  test("of the trainer come first, the others keep their order", () => {
    expect(sortLanes(lanes).map((one) => one.lane_id)).toEqual([4, 1, 2, 3]);
  });
  test("are in natural order", () => {
    const many = ["l10", "l2", null, "l1"].map((name, place) => lane(place, "rollout", 0, name));
    expect(sortLanes(many).map((one) => one.lane)).toEqual([null, "l1", "l2", "l10"]);
  });
  test("are found by height, line by line", () => {
    const layout = arrangeLanes(lanes, new Map([[1, 2]]), folded(), "normal");
    expect(layout.rows.map((row) => row.kind)).toEqual(["group", "lane", "lane", "group", "lane", "group", "lane"]);
    for (const row of layout.rows) {
      expect(rowAt(layout, row.y)).toBe(row);
      expect(rowAt(layout, row.y + row.height - 0.5)).toBe(row);
    }
    expect(rowAt(layout, layout.height)).toBeNull();
    expect(rowAt(layout, -1)).toBeNull();
    const deep = layout.rows[1]!;
    if (deep.kind !== "lane") throw new Error("the second row is a lane");
    expect([0, 1, 2, 9].map((line) => lineAt(deep, deep.y + line * deep.lineHeight + 1))).toEqual([0, 1, 2, 2]);
  });
  test("of a folded group take little room", () => {
    const open = arrangeLanes(lanes, new Map(), folded(), "normal");
    const closed = arrangeLanes(lanes, new Map(), folded("rollout0"), "normal");
    const compact = arrangeLanes(lanes, new Map(), folded(), "compact");
    expect(closed.rows).toHaveLength(open.rows.length);
    expect(closed.height).toBeLessThan(open.height);
    expect(compact.height).toBeLessThan(open.height);
  });
});
