import { expect, test } from "vitest";
import type { Timeline } from "../api";
import { ORIGIN, sampleReport } from "./sample";
import { sourceOf } from "./source";
import { blocksIn } from "./timeline";

type Row = readonly [lane: number, start: number, end: number, count?: number, parent?: number];

function level(pixel_ns: number, rows: readonly Row[]): Timeline {
  return {
    start_ns: 0,
    end_ns: 10e9,
    pixel_ns,
    names: ["a"],
    lane_id: rows.map(([lane]) => lane),
    depth: rows.map((row) => ((row[4] ?? -1) < 0 ? 0 : 1)),
    name: rows.map(() => 0),
    block_start_ns: rows.map(([, start]) => start),
    block_end_ns: rows.map(([, , end]) => end),
    count: rows.map(([, , , count]) => count ?? 1),
    busy_ns: rows.map(([, start, end]) => end - start),
    errors: rows.map(() => 0),
    open: rows.map(() => false),
    span_id: rows.map((_, row) => `span ${row}`),
    parent: rows.map((row) => row[4] ?? -1),
    step: rows.map(() => 7),
  };
}

const COARSE = level(10e6, [[1, 0, 9e9, 40]]);
const FINE = level(10e3, [
  [1, 0, 1e9],
  [1, 2e9, 9e9],
  [1, 3e9, 4e9, 1, 1],
  [2, 0, 5e9],
]);
const ALL = { start: 0, end: 10e9, pixels: 1000, maxBlocks: 1000, lanes: null };

test("the coarsest level that is fine enough is used, as the server would merge", () => {
  expect(blocksIn([COARSE, FINE], ALL).count).toEqual([40]);
  expect(blocksIn([COARSE, FINE], { ...ALL, end: 10e6 }).span_id).toEqual(["span 0", "span 3"]);
});

test("a level is clipped to the window and the lanes, and parents are resolved", () => {
  const found = blocksIn([COARSE, FINE], { ...ALL, start: 2e9, end: 2e9 + 2e6, lanes: new Set([1]) });
  expect(found.span_id).toEqual(["span 1"]);
  const both = blocksIn([FINE], { ...ALL, start: 3e9, lanes: new Set([1]) });
  expect([both.span_id, both.parent]).toEqual([
    ["span 1", "span 2"],
    [-1, 0],
  ]);
  expect(both.step).toEqual([7, 7]);
});

test("too many blocks are replaced by a coarser level, and a report without spans has none", () => {
  expect(blocksIn([COARSE, FINE], { ...ALL, pixels: 1e6, maxBlocks: 2 }).count).toEqual([40]);
  expect(blocksIn([], ALL).lane_id).toEqual([]);
});

test("times are relative to the requested origin", async () => {
  const source = sourceOf(sampleReport({ timelines: [FINE] }));
  const found = await source.get<Timeline>(
    "timeline",
    { start_ns: BigInt(ORIGIN), end_ns: BigInt(ORIGIN + 10e9), pixels: 100, origin_ns: ORIGIN - 5e9 },
    undefined,
  );
  expect(found.block_start_ns[1]).toBe(7e9);
});
