// The timeline of a report: blocks of at most a few a pixel, as the server would send them, from the spans inside.
import type { Timeline } from "../api";
import type { ReportDocument } from "./document";

/** Blocks in columns, by lane, depth and start; times count from the report's origin. */
export interface Columns {
  names: readonly string[];
  laneId: Int32Array;
  depth: Int32Array;
  name: Int32Array;
  start: Float64Array;
  end: Float64Array;
  count: Float64Array;
  busy: Float64Array;
  errors: Float64Array;
  isOpen: Uint8Array;
  step: readonly (number | null)[];
  spanId: readonly string[];
}

/** The columns of a report: its spans, each a block, or the blocks it was given where there are too many spans. */
export function columnsOf({ spans, timeline, run, origin_ns }: ReportDocument): Columns {
  if (timeline !== null) {
    return {
      names: timeline.names,
      laneId: Int32Array.from(timeline.lane_id),
      depth: Int32Array.from(timeline.depth),
      name: Int32Array.from(timeline.name),
      start: Float64Array.from(timeline.block_start_ns),
      end: Float64Array.from(timeline.block_end_ns),
      count: Float64Array.from(timeline.count),
      busy: Float64Array.from(timeline.busy_ns),
      errors: Float64Array.from(timeline.errors),
      isOpen: Uint8Array.from(timeline.open, Number),
      step: timeline.step ?? [],
      spanId: timeline.span_id,
    };
  }
  const now = (run.end_ns ?? origin_ns) - origin_ns;
  const start = Float64Array.from(spans.start_ns);
  const end = start.map((at, row) => (spans.duration_ns[row]! < 0 ? Math.max(at, now) : at + spans.duration_ns[row]!));
  const error = spans.statuses.indexOf("error");
  return {
    names: spans.names,
    laneId: Int32Array.from(spans.lane_id),
    depth: Int32Array.from(spans.depth),
    name: Int32Array.from(spans.name),
    start,
    end,
    count: new Float64Array(start.length).fill(1),
    busy: end.map((at, row) => at - start[row]!),
    errors: Float64Array.from(spans.status, (status) => (status === error ? 1 : 0)),
    isOpen: Uint8Array.from(spans.duration_ns, (duration) => (duration < 0 ? 1 : 0)),
    step: spans.step,
    spanId: spans.span_id,
  };
}

interface Wanted {
  start: number;
  end: number;
  pixels: number;
  maxBlocks: number;
  lanes: ReadonlySet<number> | null;
}

/** What is on show in a window: blocks as long as a pixel stand alone, shorter ones of one name and pixel together. */
export function blocksIn(columns: Columns, wanted: Wanted): Timeline {
  const merger = new Merger(columns, wanted);
  let pixel = Math.max(1, Math.floor((wanted.end - wanted.start) / wanted.pixels));
  for (;;) {
    const limit = pixel >= wanted.end - wanted.start ? Infinity : wanted.maxBlocks;
    const share = merger.merge(pixel, limit);
    if (share === 1) return merger.answer(pixel);
    pixel *= Math.max(2, Math.ceil(1 / share));
  }
}

/** Merges rows into blocks. Works in arrays of fixed size: at 100,000 rows, growing lists take ten times as long. */
class Merger {
  private blocks = 0;
  /** For each block its first row, its longest, and whether it is shorter than a pixel. */
  private readonly first: Int32Array;
  private readonly longest: Int32Array;
  private readonly isShort: Uint8Array;
  private readonly end: Float64Array;
  private readonly count: Float64Array;
  private readonly busy: Float64Array;
  private readonly errors: Float64Array;

  constructor(
    private readonly columns: Columns,
    private readonly wanted: Wanted,
  ) {
    const rows = columns.start.length;
    this.first = new Int32Array(rows);
    this.longest = new Int32Array(rows);
    this.isShort = new Uint8Array(rows);
    this.end = new Float64Array(rows);
    this.count = new Float64Array(rows);
    this.busy = new Float64Array(rows);
    this.errors = new Float64Array(rows);
  }

  /** Returns the share of the rows that were merged before there were too many blocks: 1 for all. */
  merge(pixel: number, limit: number): number {
    const { start, end, laneId, depth } = this.columns;
    const { lanes } = this.wanted;
    this.blocks = 0;
    let lane = -1;
    let deep = -1;
    let place = -1;
    let bucket = 0;
    for (let row = 0; row < start.length; row += 1) {
      const from = start[row]!;
      if (from >= this.wanted.end || end[row]! < this.wanted.start || (lanes !== null && !lanes.has(laneId[row]!)))
        continue;
      const at = Math.floor(from / pixel);
      if (at !== place || laneId[row] !== lane || depth[row] !== deep) {
        place = at;
        lane = laneId[row]!;
        deep = depth[row]!;
        bucket = this.blocks;
      }
      const isShort = end[row]! - from < pixel;
      const known = isShort ? this.shortBlock(bucket, row) : -1;
      if (known >= 0) {
        this.join(known, row);
        continue;
      }
      if (this.blocks >= limit) return row / start.length;
      this.add(row, isShort);
    }
    return 1;
  }

  /** The short block of the same name among those of a pixel; -1 for none. */
  private shortBlock(bucket: number, row: number): number {
    const { name, isOpen } = this.columns;
    for (let block = bucket; block < this.blocks; block += 1) {
      const first = this.first[block]!;
      if (this.isShort[block] === 1 && name[first] === name[row] && isOpen[first] === isOpen[row]) return block;
    }
    return -1;
  }

  private add(row: number, isShort: boolean): void {
    const { end, count, busy, errors } = this.columns;
    const block = this.blocks;
    this.first[block] = this.longest[block] = row;
    this.isShort[block] = isShort ? 1 : 0;
    this.end[block] = end[row]!;
    this.count[block] = count[row]!;
    this.busy[block] = busy[row]!;
    this.errors[block] = errors[row]!;
    this.blocks += 1;
  }

  private join(block: number, row: number): void {
    const { start, end, count, busy, errors } = this.columns;
    this.end[block] = Math.max(this.end[block]!, end[row]!);
    this.count[block]! += count[row]!;
    this.busy[block]! += busy[row]!;
    this.errors[block]! += errors[row]!;
    const longest = this.longest[block]!;
    if (end[row]! - start[row]! > end[longest]! - start[longest]!) this.longest[block] = row;
  }

  answer(pixel: number): Timeline {
    const { columns, blocks } = this;
    const first = Array.from(this.first.subarray(0, blocks));
    const longest = Array.from(this.longest.subarray(0, blocks));
    return {
      start_ns: this.wanted.start,
      end_ns: this.wanted.end,
      pixel_ns: pixel,
      names: [...columns.names],
      lane_id: first.map((row) => columns.laneId[row]!),
      depth: first.map((row) => columns.depth[row]!),
      name: first.map((row) => columns.name[row]!),
      block_start_ns: first.map((row) => columns.start[row]!),
      block_end_ns: Array.from(this.end.subarray(0, blocks)),
      count: Array.from(this.count.subarray(0, blocks)),
      busy_ns: Array.from(this.busy.subarray(0, blocks)),
      errors: Array.from(this.errors.subarray(0, blocks)),
      open: first.map((row) => columns.isOpen[row] === 1),
      span_id: longest.map((row) => columns.spanId[row]!),
      step: longest.map((row) => columns.step[row] ?? null),
    };
  }
}
