import { expect, test } from "vitest";
import { ORIGIN, sampleReport } from "./sample";
import { sourceOf } from "./source";
import { type Columns, blocksIn, columnsOf } from "./timeline";

const ALL = { start: 0, end: 10e9, pixels: 1000, maxBlocks: 1000, lanes: null };

function columns(rows: readonly (readonly [lane: number, start: number, length: number, name?: number])[]): Columns {
  const numbers = (values: number[]) => Float64Array.from(values);
  return {
    names: ["a", "b"],
    laneId: Int32Array.from(rows, ([lane]) => lane),
    depth: new Int32Array(rows.length),
    name: Int32Array.from(rows, ([, , , name]) => name ?? 0),
    start: numbers(rows.map(([, start]) => start)),
    end: numbers(rows.map(([, start, length]) => start + length)),
    count: numbers(rows.map(() => 1)),
    busy: numbers(rows.map(([, , length]) => length)),
    errors: numbers(rows.map(() => 0)),
    isOpen: new Uint8Array(rows.length),
    step: rows.map(() => 7),
    spanId: rows.map((_, row) => `span ${row}`),
  };
}

test("spans shorter than a pixel merge by name, and the longest gives its id", () => {
  const found = blocksIn(
    columns([
      [1, 0, 10],
      [1, 100, 30],
      [1, 200, 20, 1],
      [1, 5e9, 1e9],
      [2, 0, 10],
    ]),
    ALL,
  );
  expect(found.lane_id).toEqual([1, 1, 1, 2]);
  expect(found.name).toEqual([0, 1, 0, 0]);
  expect(found.count).toEqual([2, 1, 1, 1]);
  expect(found.busy_ns).toEqual([40, 20, 1e9, 10]);
  expect(found.span_id).toEqual(["span 1", "span 2", "span 3", "span 4"]);
  expect(found.step).toEqual([7, 7, 7, 7]);
  expect(found.block_end_ns[0]).toBe(130);
});

test("zooming in takes merged spans apart, and leaves out what is elsewhere", () => {
  const dense = columns([
    [1, 0, 10],
    [1, 100, 30],
    [1, 5e9, 1e9],
  ]);
  const found = blocksIn(dense, { ...ALL, end: 1000 });
  expect(found.span_id).toEqual(["span 0", "span 1"]);
});

test("too many blocks make pixels coarser", () => {
  const rows = Array.from({ length: 500 }, (_, row) => [1, row * 20e6, 1000] as const);
  const found = blocksIn(columns(rows), { ...ALL, maxBlocks: 50 });
  expect(found.lane_id.length).toBeLessThanOrEqual(50);
  expect(found.count.reduce((sum, count) => sum + count, 0)).toBe(500);
});

test("an open span reaches to the end of the run", () => {
  const found = columnsOf(sampleReport());
  expect([...found.end]).toEqual([8e9, 3e9, 10e9]);
  expect([...found.isOpen]).toEqual([0, 0, 1]);
  expect([...found.errors]).toEqual([0, 1, 0]);
});

test("times count from the origin that was asked for", async () => {
  const query = {
    start_ns: BigInt(ORIGIN),
    end_ns: BigInt(ORIGIN + 10e9),
    pixels: 100,
    origin_ns: ORIGIN - 1e9,
    lane: [2],
  };
  const found = await sourceOf(sampleReport()).get<{ block_start_ns: number[]; start_ns: number }>(
    "timeline",
    query,
    undefined,
  );
  expect(found.block_start_ns).toEqual([5e9]);
  expect(found.start_ns).toBe(1e9);
});
