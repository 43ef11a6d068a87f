// Lanes in groups, from top to bottom: by role, then by rank or process.
import type { Lane } from "../api";
import { naturally } from "../natural";
import { processTitle } from "../processTitle";

export type Density = "normal" | "compact";
export type Grouping = "process" | "role" | "node" | "none";
export const GROUPINGS: readonly Grouping[] = ["process", "role", "node", "none"];
export type LaneOrder = "usual" | "rank" | "node" | "name";
export const LANE_ORDERS: readonly LaneOrder[] = ["usual", "rank", "node", "name"];

/** Which groups are folded: those named, or with `all` every other one. */
export interface Folding {
  all: boolean;
  keys: ReadonlySet<string>;
}

export function isFolded({ all, keys }: Folding, key: string): boolean {
  return all !== keys.has(key);
}

/** How lanes are put into groups and order; pinned ones come first, in their own group. */
export interface Arrangement {
  grouping: Grouping;
  order: LaneOrder;
  pinned: ReadonlySet<number>;
}

export const USUAL: Arrangement = { grouping: "process", order: "usual", pinned: new Set() };
const PINNED = "pinned lanes";

export interface GroupRow {
  kind: "group";
  key: string;
  title: string;
  detail: string;
  isCollapsed: boolean;
  y: number;
  height: number;
}

export interface LaneRow {
  kind: "lane";
  lane: Lane;
  title: string;
  isPinned: boolean;
  /** Lines of nested and concurrent spans; further ones are drawn on the last. */
  lines: number;
  lineHeight: number;
  y: number;
  height: number;
}

export type Row = GroupRow | LaneRow;

export interface Layout {
  rows: readonly Row[];
  height: number;
}

const GROUP_HEIGHT = 22;
const LINE_HEIGHTS: Record<Density, number> = { normal: 16, compact: 8 };
const COLLAPSED_HEIGHT = 3;
const PADDING = 3;
/** More concurrent spans than this in one lane are drawn on its last line. */
const MAX_LINES = 2000;
/** The lines of a lane with more lines than this are lower. */
const MANY_LINES = 24;

/** The label of a lane in its group, without the parts in the group's title. */
export function laneTitle(lane: Lane): string {
  if (lane.lane === null || lane.lane === "") return "process";
  const rank = lane.rank === null ? "" : String(lane.rank);
  for (const prefix of [`${lane.role}_${rank}/`, `${lane.role}/${rank}/`, `${lane.role}-${rank}/`, `${lane.role}/`]) {
    if (rank !== "" && lane.lane.startsWith(prefix) && lane.lane.length > prefix.length)
      return lane.lane.slice(prefix.length);
  }
  return lane.lane;
}

function groupKey(lane: Lane, { grouping, pinned }: Arrangement): string {
  if (pinned.has(lane.lane_id)) return PINNED;
  return { process: lane.process_id, role: `role ${lane.role}`, node: `node ${lane.host}`, none: "" }[grouping];
}

function groupTitle(lane: Lane, { grouping, pinned }: Arrangement): string {
  if (pinned.has(lane.lane_id)) return "Pinned";
  if (grouping === "process") return processTitle(lane);
  return grouping === "node" ? lane.host || "no host" : lane.role || "no role";
}

function rowTitle(lane: Lane, { grouping, pinned }: Arrangement): string {
  if (grouping === "process" && !pinned.has(lane.lane_id)) return laneTitle(lane);
  return lane.lane === null || lane.lane === "" ? processTitle(lane) : `${processTitle(lane)} ${laneTitle(lane)}`;
}

/** Roles that lead a run, as most frameworks call them; they come first. */
const LEADING = /train|learn|driver|controller/i;

/** Sorts lanes for display: the leading roles first, then processes in the server's order, `lane2` before `lane10`. */
export function sortLanes(lanes: readonly Lane[], arrangement: Arrangement = USUAL): Lane[] {
  const { grouping, order, pinned } = arrangement;
  const places = new Map<string, number>();
  for (const lane of lanes) if (!places.has(lane.process_id)) places.set(lane.process_id, places.size);
  const group = (lane: Lane) => (grouping === "node" ? lane.host : grouping === "role" ? lane.role : "");
  const leads = (lane: Lane) => Number(grouping !== "node" && order === "usual" && LEADING.test(lane.role));
  const rank = (lane: Lane) => lane.rank ?? Number.MAX_SAFE_INTEGER;
  const ordered = (one: Lane, other: Lane) => {
    if (order === "rank") return rank(one) - rank(other);
    if (order === "node") return naturally(one.host, other.host);
    return order === "name" ? naturally(rowTitle(one, arrangement), rowTitle(other, arrangement)) : 0;
  };
  const isByProcess = grouping === "process" && order === "name";
  return [...lanes].sort(
    (one, other) =>
      Number(pinned.has(other.lane_id)) - Number(pinned.has(one.lane_id)) ||
      leads(other) - leads(one) ||
      naturally(group(one), group(other)) ||
      (isByProcess ? naturally(processTitle(one), processTitle(other)) : ordered(one, other)) ||
      places.get(one.process_id)! - places.get(other.process_id)! ||
      naturally(one.lane ?? "", other.lane ?? ""),
  );
}

/** Lays out all lanes; `sortLanes` has sorted them. */
export function arrangeLanes(
  lanes: readonly Lane[],
  lastLines: ReadonlyMap<number, number>,
  folding: Folding,
  density: Density,
  arrangement: Arrangement = USUAL,
): Layout {
  const rows: Row[] = [];
  let y = 0;
  let current: string | null = null;
  const sizes = groupSizes(lanes, arrangement);
  for (const lane of lanes) {
    const key = groupKey(lane, arrangement);
    const hasHeader = key !== "";
    const isCollapsed = hasHeader && isFolded(folding, key);
    if (hasHeader && key !== current) {
      const isOfProcess = arrangement.grouping === "process" && key !== PINNED;
      const detail = isOfProcess ? `${lane.host} · ${lane.process_id}` : (sizes.get(key) ?? "");
      const title = groupTitle(lane, arrangement);
      rows.push({ kind: "group", key, title, detail, isCollapsed, y, height: GROUP_HEIGHT });
      y += GROUP_HEIGHT;
    }
    current = key;
    const count = isCollapsed ? 1 : Math.min(MAX_LINES, (lastLines.get(lane.lane_id) ?? 0) + 1);
    const lineHeight = LINE_HEIGHTS[count > MANY_LINES ? "compact" : density];
    const height = isCollapsed ? COLLAPSED_HEIGHT + 1 : count * lineHeight + PADDING;
    rows.push({
      kind: "lane",
      lane,
      title: rowTitle(lane, arrangement),
      isPinned: arrangement.pinned.has(lane.lane_id),
      lines: count,
      lineHeight: isCollapsed ? COLLAPSED_HEIGHT : lineHeight,
      y,
      height,
    });
    y += height;
  }
  return { rows, height: y };
}

function groupSizes(lanes: readonly Lane[], arrangement: Arrangement): Map<string, string> {
  const found = new Map<string, { lanes: number; processes: Set<string> }>();
  for (const lane of lanes) {
    const key = groupKey(lane, arrangement);
    let known = found.get(key);
    if (known === undefined) found.set(key, (known = { lanes: 0, processes: new Set() }));
    known.lanes += 1;
    known.processes.add(lane.process_id);
  }
  const counted = (count: number, one: string, many: string) => `${count} ${count === 1 ? one : many}`;
  return new Map(
    [...found].map(([key, { lanes: count, processes }]) => [
      key,
      `${counted(processes.size, "process", "processes")}, ${counted(count, "lane", "lanes")}`,
    ]),
  );
}

/** Returns the row at a height, by binary search. */
export function rowAt(layout: Layout, y: number): Row | null {
  let low = 0;
  let high = layout.rows.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    const row = layout.rows[middle]!;
    if (y < row.y) high = middle - 1;
    else if (y >= row.y + row.height) low = middle + 1;
    else return row;
  }
  return null;
}

/** The first row that reaches below a height. */
export function firstRowBelow(layout: Layout, y: number): number {
  let low = 0;
  let high = layout.rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    const row = layout.rows[middle]!;
    if (row.y + row.height <= y) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The height in another layout that corresponds to a height in this one. */
export function sameRowAt(old: Layout, now: Layout, y: number): number {
  const before = y > 0 ? rowAt(old, y) : null;
  if (before === null) return y;
  const after = now.rows.find((row) =>
    before.kind === "lane"
      ? row.kind === "lane" && row.lane.lane_id === before.lane.lane_id
      : row.kind === "group" && row.key === before.key,
  );
  return after === undefined ? y : after.y + Math.min(y - before.y, after.height);
}

/** The lanes between two heights. */
export function lanesBetween(layout: Layout, top: number, bottom: number): number[] {
  const found: number[] = [];
  for (let index = firstRowBelow(layout, top); index < layout.rows.length; index += 1) {
    const row = layout.rows[index]!;
    if (row.y >= bottom) break;
    if (row.kind === "lane") found.push(row.lane.lane_id);
  }
  return found;
}

/** At most this many lanes, spread evenly from top to bottom. */
export function evenLanes({ rows }: Layout, most: number): number[] {
  const lanes = rows.flatMap((row) => (row.kind === "lane" ? [row.lane.lane_id] : []));
  const every = Math.max(1, lanes.length / most);
  return Array.from({ length: Math.min(most, lanes.length) }, (_, place) => lanes[Math.floor(place * every)]!);
}

/** Which line of a lane is at a height. */
export function lineAt(row: LaneRow, y: number): number {
  return Math.min(row.lines - 1, Math.max(0, Math.floor((y - row.y) / row.lineHeight)));
}
