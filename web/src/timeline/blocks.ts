// What the server sent for a window, arranged for drawing and for finding what is under the pointer.
import type { Timeline } from "../api";
import type { Window } from "./geometry";

/** Blocks in columns, sorted by lane, depth and start; times count from the run's origin. */
export interface Blocks {
  window: Window;
  pixelNs: number;
  /** When the answer came, by `performance.now()`: open blocks grow from there. */
  fetchedAt: number;
  /** The latest end of a block. */
  latest: number;
  names: readonly string[];
  name: Int32Array;
  depth: Int32Array;
  start: Float64Array;
  end: Float64Array;
  count: Float64Array;
  busy: Float64Array;
  errors: Float64Array;
  isOpen: Uint8Array;
  spanId: readonly string[];
  /** The training step, NaN for none; null where it was not asked for. */
  step: Float64Array | null;
  lanes: ReadonlyMap<number, LaneBlocks>;
}

/** Where a lane's blocks stand: `rows[depth]` is the first block of that depth, up to the next row's first. */
export interface LaneBlocks {
  first: number;
  end: number;
  rows: readonly { depth: number; first: number; end: number }[];
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

/** Arranges an answer whose times count from the run's origin. */
export function arrange(answer: Timeline, fetchedAt: number): Blocks {
  let latest = -Infinity;
  for (const end of answer.block_end_ns) if (end > latest) latest = end;
  return {
    latest,
    window: { start: answer.start_ns, end: answer.end_ns },
    pixelNs: answer.pixel_ns,
    fetchedAt,
    names: answer.names,
    name: Int32Array.from(answer.name),
    depth: Int32Array.from(answer.depth),
    start: Float64Array.from(answer.block_start_ns),
    end: Float64Array.from(answer.block_end_ns),
    count: Float64Array.from(answer.count),
    busy: Float64Array.from(answer.busy_ns),
    errors: Float64Array.from(answer.errors),
    isOpen: Uint8Array.from(answer.open, Number),
    spanId: answer.span_id,
    step: answer.step == null ? null : Float64Array.from(answer.step, (step) => step ?? NaN),
    lanes: laneRanges(answer.lane_id, answer.depth),
  };
}

/** Finds where the blocks of each lane and depth stand in columns sorted by both. */
export function laneRanges(laneIds: ArrayLike<number>, depths: ArrayLike<number>): Map<number, LaneBlocks> {
  const found = new Map<number, LaneBlocks>();
  let index = 0;
  while (index < laneIds.length) {
    const lane = laneIds[index]!;
    const first = index;
    const rows: { depth: number; first: number; end: number }[] = [];
    while (index < laneIds.length && laneIds[index] === lane) {
      const depth = depths[index]!;
      const rowFirst = index;
      while (index < laneIds.length && laneIds[index] === lane && depths[index] === depth) index += 1;
      rows.push({ depth, first: rowFirst, end: index });
    }
    found.set(lane, { first, end: index, rows });
  }
  return found;
}

/** The first block from `first` on that starts after a moment. */
export function firstAfter(starts: Float64Array, first: number, end: number, moment: number): number {
  let low = first;
  let high = end;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (starts[middle]! <= moment) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** How far open blocks have grown since the answer came. */
export function endOf(blocks: Blocks, index: number, growthNs: number): number {
  return blocks.end[index]! + (blocks.isOpen[index] === 1 ? growthNs : 0);
}

/** Returns the block at a lane, depth and moment, within a tolerance for the thin ones; the latest started wins. */
export function blockAt(
  blocks: Blocks,
  laneId: number,
  depth: number,
  moment: number,
  tolerance: number,
  growthNs = 0,
): Block | null {
  const row = blocks.lanes.get(laneId)?.rows.find((one) => one.depth === depth);
  if (row === undefined) return null;
  let near: number | null = null;
  // Blocks of one row may overlap, so a longer one further left can still be the one: look back a good way.
  const from = firstAfter(blocks.start, row.first, row.end, moment + tolerance) - 1;
  for (let index = from; index >= Math.max(row.first, from - 2000); index -= 1) {
    const end = endOf(blocks, index, growthNs);
    if (blocks.start[index]! <= moment && moment <= end) return block(blocks, laneId, index, growthNs);
    if (near === null && moment - end <= tolerance && blocks.start[index]! - moment <= tolerance) near = index;
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

/** The deepest row of each lane. */
export function depths(blocks: Blocks): Map<number, number> {
  const found = new Map<number, number>();
  for (const [lane, { rows }] of blocks.lanes) found.set(lane, rows[rows.length - 1]?.depth ?? 0);
  return found;
}
