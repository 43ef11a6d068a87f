import { expect, test } from "vitest";
import type { Timeline } from "../api";
import { type Blocks, arrange, blockAt } from "./blocks";
import { mergeBlocks } from "./mergeBlocks";

type Row = readonly [
  lane: number,
  depth: number,
  name: string,
  start: number,
  end: number,
  isOpen?: boolean,
  parent?: number,
];

function blocks(start: number, end: number, rows: readonly Row[]): Blocks {
  const names = [...new Set(rows.map((row) => row[2]))].sort();
  const answer: Timeline = {
    start_ns: start,
    end_ns: end,
    pixel_ns: 1,
    names,
    lane_id: rows.map((row) => row[0]),
    depth: rows.map((row) => row[1]),
    name: rows.map((row) => names.indexOf(row[2])),
    block_start_ns: rows.map((row) => row[3]),
    block_end_ns: rows.map((row) => row[4]),
    count: rows.map(() => 1),
    busy_ns: rows.map((row) => row[4] - row[3]),
    errors: rows.map(() => 0),
    open: rows.map((row) => row[5] ?? false),
    span_id: rows.map((row) => `${row[0]}-${row[2]}-${row[3]}`),
    parent: rows.map((row) => row[6] ?? -1),
  };
  return arrange(answer, 0);
}

function shown(found: Blocks): Row[] {
  const rows: Row[] = [];
  for (const [lane, { rows: lines }] of found.lanes) {
    for (const line of lines) {
      for (let index = line.first; index < line.end; index += 1) {
        rows.push([lane, line.line, found.names[found.name[index]!]!, found.start[index]!, found.end[index]!]);
      }
    }
  }
  return rows;
}

test("blocks that extend into the new window come from the new response, the rest stays", () => {
  const old = blocks(0, 100, [
    [1, 0, "a", 0, 40],
    [1, 0, "b", 50, 95, true],
    [1, 1, "inner", 60, 70],
    [3, 0, "gone", 10, 20],
  ]);
  const news = blocks(80, 150, [
    [1, 0, "b", 50, 110],
    [1, 0, "c", 115, 140],
    [2, 0, "a", 100, 120],
  ]);
  const merged = mergeBlocks(old, news, { start: 30, end: 150 });
  expect(shown(merged)).toEqual([
    [1, 0, "a", 0, 40],
    [1, 0, "b", 50, 110],
    [1, 0, "c", 115, 140],
    [1, 1, "inner", 60, 70],
    [2, 0, "a", 100, 120],
  ]);
  expect(merged.window).toEqual({ start: 30, end: 150 });
  expect(merged.latest).toBe(140);
  expect(blockAt(merged, 1, 0, 60, 0)).toMatchObject({ name: "b", isOpen: false, end: 110 });
});

test("a block that ended stays below its parent, which continues in the new response", () => {
  const old = blocks(0, 100, [
    [1, 0, "step", 0, 95, true],
    [1, 1, "wait", 0, 40, false, 0],
    [1, 1, "update", 45, 95, true, 0],
  ]);
  const news = blocks(80, 150, [
    [1, 0, "step", 0, 110],
    [1, 1, "update", 45, 100, false, 0],
    [1, 1, "beside", 60, 100, false, 0],
  ]);
  expect(shown(mergeBlocks(old, news, { start: 0, end: 150 }))).toEqual([
    [1, 0, "step", 0, 110],
    [1, 1, "wait", 0, 40],
    [1, 1, "update", 45, 100],
    [1, 2, "beside", 60, 100],
  ]);
});

test("starts stay in order on each line, even if blocks overlap", () => {
  const old = blocks(0, 100, [
    [1, 0, "long", 0, 90],
    [1, 0, "short", 20, 30],
  ]);
  const merged = mergeBlocks(old, blocks(80, 120, [[1, 0, "long", 0, 90]]), { start: 0, end: 120 });
  expect(shown(merged).map((row) => row[2])).toEqual(["long", "short"]);
});

test("steps stay with their blocks, and are unknown if one response lacks them", () => {
  const withSteps = (found: Blocks, steps: readonly number[]): Blocks => ({ ...found, step: Float64Array.from(steps) });
  const old = withSteps(
    blocks(0, 100, [
      [1, 0, "a", 0, 40],
      [1, 0, "b", 50, 95, true],
    ]),
    [7, 8],
  );
  const plain = blocks(80, 150, [
    [1, 0, "b", 50, 110],
    [2, 0, "c", 115, 140],
  ]);
  const window = { start: 0, end: 150 };
  expect([...mergeBlocks(old, withSteps(plain, [8, NaN]), window).step!]).toEqual([7, 8, NaN]);
  expect(mergeBlocks(old, plain, window).step).toBeNull();
});

test("nothing accumulates while a run is followed", () => {
  let found = blocks(0, 100, [[1, 0, "a", 0, 99]]);
  for (let now = 100; now < 5000; now += 10) {
    found = mergeBlocks(found, blocks(now - 30, now + 50, [[1, 0, `name ${now % 3}`, now - 10, now - 1]]), {
      start: now - 100,
      end: now + 50,
    });
  }
  expect(found.start.length).toBeLessThan(20);
});
