// Assigns concurrent blocks of a lane separate lines: a block with everything inside it is a stack of lines, and stacks
// that overlap in time are placed below each other, as Perfetto draws asynchronous slices.

/** The blocks of all lanes, sorted by lane, depth and start. */
export interface Packable {
  lane: ArrayLike<number>;
  depth: ArrayLike<number>;
  start: ArrayLike<number>;
  end: ArrayLike<number>;
  isOpen: ArrayLike<number>;
  /** The position of the parent's block; -1 for none. */
  parent: ArrayLike<number>;
  pixelNs: number;
}

/** Spans shorter than this many pixels may share a block. */
const SHORT_PIXELS = 4;
/** Merged blocks extend into the next pixel without being concurrent with the block there. */
const SHORT_TOLERANCE = 2;
/** An invisible overlap needs no separate line. */
const TOLERANCE = 1;

/** Returns the line of each block, from the top of its lane. */
export function packLines(blocks: Packable): Int32Array {
  const lines = new Int32Array(blocks.lane.length);
  let first = 0;
  while (first < lines.length) {
    let end = first;
    while (end < lines.length && blocks.lane[end] === blocks.lane[first]) end += 1;
    packLane(blocks, first, end, lines);
    first = end;
  }
  return lines;
}

function packLane(blocks: Packable, first: number, end: number, lines: Int32Array): void {
  if (!hasOverlap(blocks, first, end)) {
    for (let index = first; index < end; index += 1) lines[index] = blocks.depth[index]!;
    return;
  }
  // Parents come before their children; the depth is wrong if a parent arrived after its children.
  const order = Array.from({ length: end - first }, (_, place) => first + place).sort(
    (one, other) =>
      blocks.start[one]! - blocks.start[other]! || endOf(blocks, other) - endOf(blocks, one) || one - other,
  );
  const seen = new Uint8Array(end - first);
  const children = new Map<number, number[]>();
  const roots: number[] = [];
  for (const index of order) {
    seen[index - first] = 1;
    const parent = blocks.parent[index]!;
    const isInside = parent >= first && parent < end && parent !== index && seen[parent - first] === 1;
    if (!isInside) roots.push(index);
    else {
      const known = children.get(parent);
      if (known === undefined) children.set(parent, [index]);
      else known.push(index);
    }
  }
  const stacks = new Stacks(blocks, children, lines, first, end);
  // The innermost stacks are built first.
  for (let place = order.length - 1; place >= 0; place -= 1) stacks.make(order[place]!);
  const taken: number[] = [];
  for (const root of roots) stacks.place(root, taken, isShort(blocks, root) ? blocks.depth[root]! : 0);
  for (const index of order)
    for (const child of children.get(index) ?? []) lines[child] = lines[child]! + lines[index]!;
}

function isShort(blocks: Packable, index: number): boolean {
  return blocks.end[index]! - blocks.start[index]! < SHORT_PIXELS * blocks.pixelNs;
}

function tolerance(blocks: Packable, index: number): number {
  return (isShort(blocks, index) ? SHORT_TOLERANCE : TOLERANCE) * blocks.pixelNs;
}

/** An open block continues after the response arrived. */
function endOf(blocks: Packable, index: number): number {
  return blocks.isOpen[index] === 1 ? Infinity : blocks.end[index]!;
}

/** Returns whether blocks of one depth are concurrent; most lanes have none and skip the rest. */
function hasOverlap(blocks: Packable, first: number, end: number): boolean {
  let reached = -Infinity;
  for (let index = first; index < end; index += 1) {
    if (index > first && blocks.depth[index] !== blocks.depth[index - 1]) reached = -Infinity;
    if (reached - tolerance(blocks, index) > blocks.start[index]!) return true;
    reached = Math.max(reached, endOf(blocks, index));
  }
  return false;
}

class Stacks {
  private readonly height: Int32Array;
  private readonly end: Float64Array;

  constructor(
    private readonly blocks: Packable,
    private readonly children: ReadonlyMap<number, readonly number[]>,
    private readonly lines: Int32Array,
    private readonly first: number,
    end: number,
  ) {
    this.height = new Int32Array(end - first);
    this.end = new Float64Array(end - first);
  }

  /** Places the children of a block, relative to its line; their own children are already placed. */
  make(index: number): void {
    const taken: number[] = [];
    let end = endOf(this.blocks, index);
    for (const child of this.children.get(index) ?? []) {
      this.place(child, taken, 1);
      end = Math.max(end, this.end[child - this.first]!);
    }
    this.height[index - this.first] = Math.max(1, taken.length);
    this.end[index - this.first] = end;
  }

  /** Finds the first lines from `least` on that are free when a stack begins, and reserves them until it ends. */
  place(index: number, taken: number[], least: number): void {
    const height = this.height[index - this.first]!;
    const start = this.blocks.start[index]! + tolerance(this.blocks, index);
    let line = least;
    for (let reached = line; reached < Math.min(taken.length, line + height); reached += 1) {
      if ((taken[reached] ?? -Infinity) > start) line = reached + 1;
    }
    for (let place = taken.length; place < line; place += 1) taken.push(-Infinity);
    const end = this.end[index - this.first]!;
    for (let place = line; place < line + height; place += 1) taken[place] = Math.max(taken[place] ?? -Infinity, end);
    this.lines[index] = line;
  }
}
