// Statistics of a time range, from its blocks.
import { isWaiting } from "../colors";
import type { Blocks } from "./blocks";
import type { Window } from "./geometry";

export interface NameTime {
  name: string;
  count: number;
  /** How long at least one of them ran within the range: the union of their intervals. */
  wall: number;
  errors: number;
  open: number;
}

export interface RangeStatistics {
  names: NameTime[];
  /** For each lane, how long it was busy and not waiting. */
  busy: Map<number, number>;
}

type Interval = readonly [number, number];

/** The length of a union of intervals. */
export function unionLength(intervals: readonly Interval[]): number {
  const sorted = [...intervals].sort((one, other) => one[0] - other[0]);
  let length = 0;
  let reached = -Infinity;
  for (const [start, end] of sorted) {
    if (end <= reached) continue;
    length += end - Math.max(start, reached);
    reached = end;
  }
  return length;
}

/** Computes the statistics of a range; blocks that extend beyond it count only with their part inside. */
export function rangeStatistics(blocks: Blocks, range: Window): RangeStatistics {
  const byName = new Map<string, { intervals: Interval[]; count: number; errors: number; open: number }>();
  const busy = new Map<number, number>();
  for (const [laneId, lane] of blocks.lanes) {
    const running: Interval[] = [];
    const waiting: Interval[] = [];
    for (let index = lane.first; index < lane.end; index += 1) {
      const interval = clipped(blocks, index, range);
      if (interval === null) continue;
      const name = blocks.names[blocks.name[index]!] ?? "";
      (isWaiting(name) ? waiting : running).push(interval);
      let sum = byName.get(name);
      if (sum === undefined) byName.set(name, (sum = { intervals: [], count: 0, errors: 0, open: 0 }));
      sum.intervals.push(interval);
      sum.count += blocks.count[index]!;
      sum.errors += blocks.errors[index]!;
      sum.open += blocks.isOpen[index]!;
    }
    // A wait inside another span leaves the lane idle: the enclosing span does not count during it.
    busy.set(laneId, unionLength([...running, ...waiting]) - unionLength(waiting));
  }
  const names = [...byName].map(([name, { intervals, ...sums }]) => ({ name, wall: unionLength(intervals), ...sums }));
  return { names: names.sort((one, other) => other.wall - one.wall), busy };
}

function clipped(blocks: Blocks, index: number, range: Window): Interval | null {
  const start = Math.max(blocks.start[index]!, range.start);
  const end = Math.min(blocks.end[index]!, range.end);
  if (end < start) return null;
  // Merged short spans have gaps between them; their sum is more accurate than their extent.
  const isMerged = blocks.count[index]! > 1;
  return [start, isMerged ? Math.min(end, start + blocks.busy[index]!) : end];
}
