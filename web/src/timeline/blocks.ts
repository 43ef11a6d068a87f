// The server's response for a window, arranged for drawing and hit testing.
import type { Timeline } from "../api";
import type { Window } from "./geometry";
import { packLines } from "./pack";

/** Blocks in columns, sorted by lane, line and start; times count from the run's origin. */
export interface Blocks {
  window: Window;
  pixelNs: number;
  /** When the response arrived, by `performance.now()`: open blocks grow from there. */
  fetchedAt: number;
  /** The latest end of a block. */
  latest: number;
  names: readonly string[];
  name: Int32Array;
  depth: Int32Array;
  /** The line of its lane that it is drawn on. */
  line: Int32Array;
  /** The position of the parent's block; -1 for none. */
  parent: Int32Array;
  start: Float64Array;
  end: Float64Array;
  count: Float64Array;
  busy: Float64Array;
  errors: Float64Array;
  isOpen: Uint8Array;
  spanId: readonly string[];
  /** The training step, NaN for none; null if it was not requested. */
  step: Float64Array | null;
  /** The requested lanes; null for all. */
  onlyLanes: ReadonlySet<number> | null;
  lanes: ReadonlyMap<number, LaneBlocks>;
}

/** Where a lane's blocks are in the columns: each of its lines is a range of them. */
export interface LaneBlocks {
  first: number;
  end: number;
  rows: readonly { line: number; first: number; end: number }[];
}

/** The columns of blocks before line assignment, sorted by lane, depth and start. */
export interface Unpacked extends Omit<Blocks, "line" | "lanes" | "latest"> {
  laneId: ArrayLike<number>;
}

export interface Block {
  index: number;
  laneId: number;
  name: string;
  depth: number;
  start: number;
  end: number;
  count: number;
  busy: number;
  errors: number;
  isOpen: boolean;
  spanId: string;
}

/** Arranges a response with times relative to the run's origin. */
export function arrange(answer: Timeline, fetchedAt: number, onlyLanes: ReadonlySet<number> | null = null): Blocks {
  return packed({
    window: { start: answer.start_ns, end: answer.end_ns },
    pixelNs: answer.pixel_ns,
    fetchedAt,
    names: answer.names,
    laneId: answer.lane_id,
    name: Int32Array.from(answer.name),
    depth: Int32Array.from(answer.depth),
    parent: Int32Array.from(answer.parent),
    start: Float64Array.from(answer.block_start_ns),
    end: Float64Array.from(answer.block_end_ns),
    count: Float64Array.from(answer.count),
    busy: Float64Array.from(answer.busy_ns),
    errors: Float64Array.from(answer.errors),
    isOpen: Uint8Array.from(answer.open, Number),
    spanId: answer.span_id,
    step: answer.step == null ? null : Float64Array.from(answer.step, (step) => step ?? NaN),
    onlyLanes,
  });
}

/** Whether the blocks of a lane are loaded, if it has any. */
export function knowsLane({ onlyLanes }: Blocks, laneId: number): boolean {
  return onlyLanes === null || onlyLanes.has(laneId);
}

/** Assigns each block its line, and sorts them by it. */
export function packed({ laneId, ...blocks }: Unpacked): Blocks {
  const lines = packLines({ lane: laneId, ...blocks });
  const order = Int32Array.from(lines, (_, index) => index);
  const { start } = blocks;
  order.sort(
    (one, other) => laneId[one]! - laneId[other]! || lines[one]! - lines[other]! || start[one]! - start[other]!,
  );
  const places = new Int32Array(order.length);
  order.forEach((index, place) => (places[index] = place));
  const moved = (column: Float64Array) => Float64Array.from(order, (index) => column[index]!);
  const line = Int32Array.from(order, (index) => lines[index]!);
  let latest = -Infinity;
  for (const end of blocks.end) if (end > latest) latest = end;
  return {
    ...blocks,
    latest,
    line,
    name: Int32Array.from(order, (index) => blocks.name[index]!),
    depth: Int32Array.from(order, (index) => blocks.depth[index]!),
    parent: Int32Array.from(order, (index) => (blocks.parent[index]! < 0 ? -1 : places[blocks.parent[index]!]!)),
    start: moved(blocks.start),
    end: moved(blocks.end),
    count: moved(blocks.count),
    busy: moved(blocks.busy),
    errors: moved(blocks.errors),
    isOpen: Uint8Array.from(order, (index) => blocks.isOpen[index]!),
    spanId: Array.from(order, (index) => blocks.spanId[index]!),
    step: blocks.step === null ? null : moved(blocks.step),
    lanes: laneRanges(
      Int32Array.from(order, (index) => laneId[index]!),
      line,
    ),
  };
}

/** Finds where the blocks of each lane and line are in columns sorted by both. */
export function laneRanges(laneIds: ArrayLike<number>, lines: ArrayLike<number>): Map<number, LaneBlocks> {
  const found = new Map<number, LaneBlocks>();
  let index = 0;
  while (index < laneIds.length) {
    const lane = laneIds[index]!;
    const first = index;
    const rows: { line: number; first: number; end: number }[] = [];
    while (index < laneIds.length && laneIds[index] === lane) {
      const line = lines[index]!;
      const rowFirst = index;
      while (index < laneIds.length && laneIds[index] === lane && lines[index] === line) index += 1;
      rows.push({ line, first: rowFirst, end: index });
    }
    found.set(lane, { first, end: index, rows });
  }
  return found;
}

/** The first block at or after index `first` that starts after a time. */
export function firstAfter(starts: Float64Array, first: number, end: number, time: number): number {
  let low = first;
  let high = end;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (starts[middle]! <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** How far open blocks have grown since the response arrived. */
export function endOf(blocks: Blocks, index: number, growthNs: number): number {
  return blocks.end[index]! + (blocks.isOpen[index] === 1 ? growthNs : 0);
}

/** Returns the block at a lane, line and time, with a tolerance for thin blocks; the one that started last wins. */
export function blockAt(
  blocks: Blocks,
  laneId: number,
  line: number,
  time: number,
  tolerance: number,
  growthNs = 0,
): Block | null {
  const row = blocks.lanes.get(laneId)?.rows.find((one) => one.line === line);
  if (row === undefined) return null;
  let near: number | null = null;
  // Blocks of one row may overlap, so a longer one further left can still match: look back far enough.
  const from = firstAfter(blocks.start, row.first, row.end, time + tolerance) - 1;
  for (let index = from; index >= Math.max(row.first, from - 2000); index -= 1) {
    const end = endOf(blocks, index, growthNs);
    if (blocks.start[index]! <= time && time <= end) return block(blocks, laneId, index, growthNs);
    if (near === null && time - end <= tolerance && blocks.start[index]! - time <= tolerance) near = index;
  }
  return near === null ? null : block(blocks, laneId, near, growthNs);
}

function block(blocks: Blocks, laneId: number, index: number, growthNs: number): Block {
  return {
    index,
    laneId,
    name: blocks.names[blocks.name[index]!] ?? "",
    depth: blocks.depth[index]!,
    start: blocks.start[index]!,
    end: endOf(blocks, index, growthNs),
    count: blocks.count[index]!,
    busy: blocks.busy[index]!,
    errors: blocks.errors[index]!,
    isOpen: blocks.isOpen[index] === 1,
    spanId: blocks.spanId[index] ?? "",
  };
}

/** The last line of each lane. */
export function lastLines(blocks: Blocks): Map<number, number> {
  const found = new Map<number, number>();
  for (const [lane, { rows }] of blocks.lanes) found.set(lane, rows[rows.length - 1]?.line ?? 0);
  return found;
}
