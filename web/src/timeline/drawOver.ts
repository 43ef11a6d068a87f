// Draws the overlay of the lanes: marks, and arrows between spans of different lanes.
import { type Context, clip } from "./drawAxis";
import { timeToX } from "./geometry";
import type { LaneRow, Layout } from "./layout";
import { AXIS_HEIGHT, type Flow, GUTTER, type Scene, type SceneMark } from "./scene";

const REACH = 6;
/** With more marks in view than this, no lines are drawn through the lanes. */
const MANY_MARKS = 60;

function visible(scene: Scene): SceneMark[] {
  return scene.marks.filter((mark) => mark.time >= scene.window.start && mark.time <= scene.window.end);
}

/** The mark near a position on the axis. */
export function markAt(scene: Scene, x: number): SceneMark | null {
  const pixels = scene.width - GUTTER;
  const distance = (mark: SceneMark) => Math.abs(GUTTER + timeToX(mark.time, scene.window, pixels) - x);
  const [nearest] = visible(scene).sort((one, other) => distance(one) - distance(other));
  return nearest !== undefined && distance(nearest) <= REACH ? nearest : null;
}

/** Lines through the lanes, and triangles on the axis. */
export function drawMarks(context: Context, scene: Scene, top: number): void {
  const pixels = scene.width - GUTTER;
  const marks = visible(scene);
  clip(context, GUTTER, 0, pixels, scene.height, () => {
    for (const mark of marks) {
      const x = Math.round(GUTTER + timeToX(mark.time, scene.window, pixels)) + 0.5;
      context.strokeStyle = context.fillStyle = mark.color;
      context.globalAlpha = 0.7;
      if (marks.length <= MANY_MARKS) {
        context.lineWidth = 1;
        context.setLineDash([3, 4]);
        context.beginPath();
        context.moveTo(x, top);
        context.lineTo(x, scene.height);
        context.stroke();
        context.setLineDash([]);
      }
      context.globalAlpha = 1;
      context.beginPath();
      context.moveTo(x - 5, AXIS_HEIGHT - 9);
      context.lineTo(x + 5, AXIS_HEIGHT - 9);
      context.lineTo(x, AXIS_HEIGHT - 1);
      context.fill();
    }
  });
}

/** Arrows from where a span was started to where it ran. */
export function drawFlows(context: Context, scene: Scene, top: number): void {
  if (scene.flows.length === 0) return;
  const rows = rowsOf(scene.layout);
  const pixels = scene.width - GUTTER;
  clip(context, GUTTER, top, pixels, scene.height - top, () => {
    context.strokeStyle = context.fillStyle = scene.colors.accent;
    context.lineWidth = 1.3;
    context.globalAlpha = 0.85;
    for (const flow of scene.flows) {
      const [from, to] = [rows.get(flow.fromLane), rows.get(flow.toLane)];
      if (from === undefined || to === undefined) continue;
      const middle = (row: LaneRow) => row.y + top - scene.scrollTop + Math.min(row.height / 2, 9);
      const [x1, x2] = [flow.fromTime, flow.toTime].map((time) => GUTTER + timeToX(time, scene.window, pixels));
      arrow(context, x1!, middle(from), x2!, middle(to));
    }
    context.globalAlpha = 1;
  });
}

function rowsOf(layout: Layout): Map<number, LaneRow> {
  return new Map(layout.rows.flatMap((row) => (row.kind === "lane" ? [[row.lane.lane_id, row] as const] : [])));
}

function arrow(context: Context, x1: number, y1: number, x2: number, y2: number): void {
  const bend = Math.max(24, Math.abs(x2 - x1) / 2);
  context.beginPath();
  context.moveTo(x1, y1);
  context.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2 - 5, y2);
  context.stroke();
  context.beginPath();
  context.moveTo(x2, y2);
  context.lineTo(x2 - 7, y2 - 4);
  context.lineTo(x2 - 7, y2 + 4);
  context.fill();
}

interface Placed {
  span_id: string;
  lane_id: number;
  start_ns: number;
}

/** The arrows of a span: from its parent, and to its children, if those ran on other lanes. */
export function flowsOf(span: Placed, parent: Placed | undefined, children: readonly Placed[], origin: number): Flow[] {
  const to = (from: Placed, child: Placed): Flow => ({
    fromLane: from.lane_id,
    // A child begins while its parent runs: the arrow leaves the parent at that time.
    fromTime: child.start_ns - origin,
    toLane: child.lane_id,
    toTime: child.start_ns - origin,
  });
  return [
    ...(parent !== undefined && parent.lane_id !== span.lane_id ? [to(parent, span)] : []),
    ...children.filter((child) => child.lane_id !== span.lane_id).map((child) => to(span, child)),
  ];
}
