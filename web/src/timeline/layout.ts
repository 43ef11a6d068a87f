// Lanes in groups, from top to bottom: by role, then by rank or process.
import type { Lane } from "../api";

export type Density = "normal" | "compact";

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
  /** Lines of nested and concurrent spans; those past the last are drawn on it. */
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
/** A lane with more lines than this has low ones. */
const MANY_LINES = 24;

/** What a lane is called beside its group: without the parts that the group's title says already. */
export function laneTitle(lane: Lane): string {
  if (lane.lane === null || lane.lane === "") return "process";
  const rank = lane.rank === null ? "" : String(lane.rank);
  for (const prefix of [`${lane.role}_${rank}/`, `${lane.role}/${rank}/`, `${lane.role}-${rank}/`, `${lane.role}/`]) {
    if (rank !== "" && lane.lane.startsWith(prefix) && lane.lane.length > prefix.length)
      return lane.lane.slice(prefix.length);
  }
  return lane.lane;
}

function groupKey(lane: Lane): string {
  return lane.process_id;
}

function groupTitle(lane: Lane): string {
  const role = lane.role === "" ? lane.process_id : lane.role;
  return lane.rank === null ? role : `${role} ${lane.rank}`;
}

/** Roles that lead a run, as most frameworks call them; they come first. */
const LEADING = /train|learn|driver|controller/i;

/** Sorts lanes for the eye: what leads the run first, then processes as the server has them, `lane2` before `lane10`. */
export function sortLanes(lanes: readonly Lane[]): Lane[] {
  const places = new Map<string, number>();
  for (const lane of lanes) if (!places.has(lane.process_id)) places.set(lane.process_id, places.size);
  return [...lanes].sort(
    (one, other) =>
      Number(LEADING.test(other.role)) - Number(LEADING.test(one.role)) ||
      places.get(one.process_id)! - places.get(other.process_id)! ||
      (one.lane ?? "").localeCompare(other.lane ?? "", "en", { numeric: true }),
  );
}

/** Places every lane; lanes come sorted by role, rank, process and name from the server. */
export function arrangeLanes(
  lanes: readonly Lane[],
  lastLines: ReadonlyMap<number, number>,
  collapsed: ReadonlySet<string>,
  density: Density,
): Layout {
  const rows: Row[] = [];
  let y = 0;
  let current: string | null = null;
  for (const lane of lanes) {
    const key = groupKey(lane);
    const isCollapsed = collapsed.has(key);
    if (key !== current) {
      current = key;
      const detail = `${lane.host} · ${lane.process_id}`;
      rows.push({ kind: "group", key, title: groupTitle(lane), detail, isCollapsed, y, height: GROUP_HEIGHT });
      y += GROUP_HEIGHT;
    }
    const count = isCollapsed ? 1 : Math.min(MAX_LINES, (lastLines.get(lane.lane_id) ?? 0) + 1);
    const lineHeight = LINE_HEIGHTS[count > MANY_LINES ? "compact" : density];
    const height = isCollapsed ? COLLAPSED_HEIGHT + 1 : count * lineHeight + PADDING;
    rows.push({
      kind: "lane",
      lane,
      title: laneTitle(lane),
      lines: count,
      lineHeight: isCollapsed ? COLLAPSED_HEIGHT : lineHeight,
      y,
      height,
    });
    y += height;
  }
  return { rows, height: y };
}

/** Returns the row at a height, by halving. */
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

/** Which line of a lane is at a height. */
export function lineAt(row: LaneRow, y: number): number {
  return Math.min(row.lines - 1, Math.max(0, Math.floor((y - row.y) / row.lineHeight)));
}
