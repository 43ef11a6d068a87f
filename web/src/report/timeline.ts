// The timeline of a report: it contains the server's response at several resolutions; one of them is clipped here.
import type { Timeline } from "../api";

interface Wanted {
  /** In the unit of the levels. */
  start: number;
  end: number;
  pixels: number;
  maxBlocks: number;
  lanes: ReadonlySet<number> | null;
}

/** A level that is too coarse by this factor is still acceptable. */
const COARSE = 1.5;

/** Returns the blocks in a window, from the coarsest level that is fine enough and not too long. */
export function blocksIn(levels: readonly Timeline[], wanted: Wanted): Timeline {
  const pixel = (wanted.end - wanted.start) / wanted.pixels;
  const fine = levels.findIndex((level) => level.pixel_ns <= pixel * COARSE);
  let place = fine < 0 ? levels.length - 1 : fine;
  let found = cut(levels[place], wanted);
  while (found.lane_id.length > wanted.maxBlocks && place > 0) {
    place -= 1;
    found = cut(levels[place], wanted);
  }
  return found;
}

function cut(level: Timeline | undefined, { start, end, lanes }: Wanted): Timeline {
  const rows: number[] = [];
  const places = new Map<number, number>();
  for (let row = 0; row < (level?.lane_id.length ?? 0); row += 1) {
    const isInside = level!.block_start_ns[row]! < end && level!.block_end_ns[row]! >= start;
    if (!isInside || (lanes !== null && !lanes.has(level!.lane_id[row]!))) continue;
    places.set(row, rows.length);
    rows.push(row);
  }
  const kept = <T>(column: readonly T[] | undefined) => rows.map((row) => column![row]!);
  return {
    start_ns: start,
    end_ns: end,
    pixel_ns: level?.pixel_ns ?? 1,
    names: level?.names ?? [],
    lane_id: kept(level?.lane_id),
    depth: kept(level?.depth),
    name: kept(level?.name),
    block_start_ns: kept(level?.block_start_ns),
    block_end_ns: kept(level?.block_end_ns),
    count: kept(level?.count),
    busy_ns: kept(level?.busy_ns),
    errors: kept(level?.errors),
    open: kept(level?.open),
    span_id: kept(level?.span_id),
    parent: kept(level?.parent).map((parent) => places.get(parent) ?? -1),
    step: level?.step == null ? null : rows.map((row) => level.step![row] ?? null),
  };
}
