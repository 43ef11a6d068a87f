// Draws a scene; independent of React, the server and the pointer.
import { colorOfName, colorOfStatus, colorOfStep, textOn } from "../colors";
import { formatDuration } from "../units";
import { type Blocks, endOf, firstAfter, knowsLane } from "./blocks";
import { CHARACTER, type Context, clip, drawAxis, drawStepLines, drawStrips, fitted } from "./drawAxis";
import { drawFlows, drawMarks } from "./drawOver";
import { type Window, timeToX, width } from "./geometry";
import { type GroupRow, type LaneRow, firstRowBelow } from "./layout";
import { AXIS_HEIGHT, GUTTER, type Scene, type StepMark, lanesTop } from "./scene";

const DIMMED = 0.16;

/** Draws everything. */
export function drawTimeline(context: Context, scene: Scene): void {
  const { width: pixels, height, colors } = scene;
  context.globalAlpha = 1;
  context.fillStyle = colors.surface;
  context.fillRect(0, 0, pixels, height);
  context.textBaseline = "middle";
  const top = lanesTop(scene.strips.length);
  drawLanes(context, scene, top);
  drawFlows(context, scene, top);
  drawStrips(context, scene);
  drawAxis(context, scene);
  drawMarks(context, scene, top);
  drawRange(context, scene);
  drawPointer(context, scene);
  drawScrollBar(context, scene, top);
}

function drawLanes(context: Context, scene: Scene, top: number): void {
  const { layout, scrollTop, width: pixels, height } = scene;
  const rows = layout.rows;
  const first = firstRowBelow(layout, scrollTop);
  const bottom = scrollTop + height - top;
  const inView: (GroupRow | LaneRow)[] = [];
  for (let index = first; index < rows.length && rows[index]!.y < bottom; index += 1) inView.push(rows[index]!);
  const offset = top - scrollTop;

  clip(context, GUTTER, top, pixels - GUTTER, height - top, () => {
    drawStepLines(context, scene, top);
    for (const row of inView) if (row.kind === "lane") drawLane(context, scene, row, row.y + offset);
    for (const row of inView) if (row.kind === "lane") drawHighlight(context, scene, row, row.y + offset);
    drawHorizon(context, scene, top);
  });
  clip(context, 0, top, pixels, height - top, () => {
    for (const row of inView) drawTitle(context, scene, row, row.y + offset);
  });
}

function drawLane(context: Context, scene: Scene, row: LaneRow, y: number): void {
  const known = (blocks: Blocks | null) => (blocks !== null && knowsLane(blocks, row.lane.lane_id) ? blocks : null);
  const [fine, coarse] = [known(scene.fine), known(scene.coarse)];
  context.globalAlpha = 1;
  context.fillStyle = scene.colors.grid;
  context.fillRect(GUTTER, y + row.height - 1, scene.width - GUTTER, 1);
  if (fine === null) {
    if (coarse !== null) drawBlocks(context, scene, row, y, coarse, scene.coarseGrowth, scene.window);
    else drawAwaited(context, scene, row, y);
    return;
  }
  if (coarse !== null) {
    // Until the exact blocks are loaded, coarse ones replace them.
    const { start, end } = fine.window;
    if (scene.window.start < start)
      drawBlocks(context, scene, row, y, coarse, scene.coarseGrowth, {
        start: scene.window.start,
        end: Math.min(start, scene.window.end),
      });
    if (scene.window.end > end)
      drawBlocks(context, scene, row, y, coarse, scene.coarseGrowth, {
        start: Math.max(end, scene.window.start),
        end: scene.window.end,
      });
  }
  drawBlocks(context, scene, row, y, fine, scene.fineGrowth, scene.window);
}

/** A lane that is loading does not look like an empty one. */
function drawAwaited(context: Context, scene: Scene, row: LaneRow, y: number): void {
  context.fillStyle = scene.colors.sunken;
  context.fillRect(GUTTER, y, scene.width - GUTTER, row.height - 1);
  if (row.height < 11) return;
  context.fillStyle = scene.colors.muted;
  context.font = `11px ${scene.colors.font}`;
  context.fillText("loading…", GUTTER + 8, y + Math.min(row.height / 2, row.lineHeight / 2 + 1));
}

/** Frames the lanes and time of a finding, and dims the rest. */
function drawHighlight(context: Context, scene: Scene, row: LaneRow, y: number): void {
  const { highlight } = scene;
  if (highlight === null) return;
  const veil = (alpha: number, from: number, to: number) => {
    if (to <= from) return;
    context.globalAlpha = alpha;
    context.fillStyle = scene.colors.surface;
    context.fillRect(from, y, to - from, row.height - 1);
    context.globalAlpha = 1;
  };
  if (highlight.lanes.size > 0 && !highlight.lanes.has(row.lane.lane_id)) return veil(0.65, GUTTER, scene.width);
  const lanes = scene.width - GUTTER;
  const from = GUTTER + timeToX(highlight.start, scene.window, lanes);
  const to = Math.max(from + 2, GUTTER + timeToX(highlight.end, scene.window, lanes));
  veil(0.45, GUTTER, from);
  veil(0.45, Math.max(GUTTER, to), scene.width);
  context.strokeStyle = scene.colors.bad;
  context.lineWidth = 2;
  context.strokeRect(from, y, to - from, row.height - 1);
}

const paintOf = new WeakMap<Blocks, string[]>();

function namePaint(blocks: Blocks): string[] {
  let paint = paintOf.get(blocks);
  if (paint === undefined) {
    paint = blocks.names.map(colorOfName);
    paintOf.set(blocks, paint);
  }
  return paint;
}

/** The step that was running at a time. */
export function stepAt(steps: readonly StepMark[], time: number): number | null {
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle]!.start <= time) low = middle + 1;
    else high = middle;
  }
  return low === 0 ? null : steps[low - 1]!.step;
}

/** The step of a block; if the response has none, the step that was running when the block began. */
function stepOf(scene: Scene, blocks: Blocks, index: number): number | null {
  if (blocks.step === null) return stepAt(scene.steps, blocks.start[index]!);
  const step = blocks.step[index]!;
  return Number.isNaN(step) ? null : step;
}

function blockColor(scene: Scene, blocks: Blocks, index: number): string {
  if (scene.colorBy === "name") return namePaint(blocks)[blocks.name[index]!] ?? "#888888";
  if (scene.colorBy === "step") return colorOfStep(stepOf(scene, blocks, index));
  return colorOfStatus(blocks.errors[index]! > 0 ? "error" : blocks.isOpen[index] === 1 ? "open" : "ok");
}

function isMatch(scene: Scene, blocks: Blocks, index: number, laneId: number): boolean {
  return (
    scene.hitLanes.has(laneId) ||
    scene.hits.has(blocks.spanId[index] ?? "") ||
    (scene.search !== "" && (blocks.names[blocks.name[index]!] ?? "").toLowerCase().includes(scene.search))
  );
}

function drawBlocks(
  context: Context,
  scene: Scene,
  row: LaneRow,
  y: number,
  blocks: Blocks,
  growth: number,
  part: Window,
): void {
  const lane = blocks.lanes.get(row.lane.lane_id);
  if (lane === undefined) return;
  const pixels = scene.width - GUTTER;
  const scale = pixels / width(scene.window);
  const left = GUTTER + (part.start - scene.window.start) * scale;
  const right = GUTTER + (part.end - scene.window.start) * scale;
  const { isSearching } = scene;
  for (const line of lane.rows) {
    const place = Math.min(line.line, row.lines - 1);
    if (line.line >= row.lines && row.lines === 1 && row.lineHeight <= 3) continue;
    const lineTop = y + place * row.lineHeight + 1;
    const lineHeight = Math.max(2, row.lineHeight - 1);
    const last = firstAfter(blocks.start, line.first, line.end, part.end);
    for (let index = line.first; index < last; index += 1) {
      const end = endOf(blocks, index, growth);
      if (end < part.start) continue;
      const from = Math.max(left, GUTTER + (blocks.start[index]! - scene.window.start) * scale);
      const to = Math.min(right, GUTTER + (end - scene.window.start) * scale);
      const size = Math.max(1, to - from - (to - from > 4 ? 1 : 0));
      const color = blockColor(scene, blocks, index);
      const duration = end - blocks.start[index]!;
      const isMerged = blocks.count[index]! > 1 && size < 6;
      const share = isMerged && duration > 0 ? Math.min(1, blocks.busy[index]! / duration) : 1;
      const matches = !isSearching || isMatch(scene, blocks, index, row.lane.lane_id);
      context.globalAlpha = matches ? 0.45 + 0.55 * share : DIMMED;
      context.fillStyle = color;
      context.fillRect(from, lineTop, size, lineHeight);
      if (blocks.isOpen[index] === 1 && matches) drawOpen(context, from, to, lineTop, lineHeight, scene.colors.text);
      if (blocks.errors[index]! > 0 && scene.colorBy !== "status" && matches) {
        // A few errors among many merged spans are a shade, not an alarm.
        context.globalAlpha = Math.min(1, 0.15 + blocks.errors[index]! / blocks.count[index]!);
        context.fillStyle = scene.colors.bad;
        context.fillRect(from, lineTop + lineHeight - 3, Math.max(2, size), 3);
      }
      if (size > 34 && lineHeight >= 11)
        drawLabel(context, blocks, index, from, size, lineTop + lineHeight / 2, color, duration, matches);
      const id = blocks.spanId[index];
      if (id === scene.selectedSpanId || id === scene.hoveredSpanId) {
        context.globalAlpha = 1;
        context.strokeStyle = scene.colors.text;
        context.lineWidth = id === scene.selectedSpanId ? 2 : 1;
        context.strokeRect(from + 0.5, lineTop + 0.5, Math.max(2, size - 1), lineHeight - 1);
      }
    }
  }
  context.globalAlpha = 1;
}

/** Open spans are striped and have no right edge: they continue. */
function drawOpen(context: Context, from: number, to: number, top: number, height: number, ink: string): void {
  clip(context, from, top, Math.max(3, to - from), height, () => {
    context.globalAlpha = 0.28;
    context.strokeStyle = ink;
    context.lineWidth = 2;
    context.beginPath();
    for (let x = Math.max(from, to - 4000) - height; x < to; x += 8) {
      context.moveTo(x, top + height);
      context.lineTo(x + height, top);
    }
    context.stroke();
  });
  context.globalAlpha = 0.95;
  context.fillStyle = ink;
  context.beginPath();
  context.moveTo(to, top);
  context.lineTo(to + Math.min(5, height / 2), top + height / 2);
  context.lineTo(to, top + height);
  context.fill();
}

function drawLabel(
  context: Context,
  blocks: Blocks,
  index: number,
  from: number,
  size: number,
  middle: number,
  color: string,
  duration: number,
  isClear: boolean,
): void {
  const name = blocks.names[blocks.name[index]!] ?? "";
  const room = Math.floor((size - 8) / CHARACTER);
  const time = formatDuration(duration);
  const text =
    name.length + time.length + 2 <= room
      ? `${name}  ${time}`
      : name.length <= room
        ? name
        : room > 4
          ? `${name.slice(0, room - 1)}…`
          : "";
  if (text === "") return;
  context.globalAlpha = isClear ? 1 : 0.35;
  context.fillStyle = isClear ? textOn(color) : "#888888";
  context.fillText(text, from + 4, middle + 0.5);
}

function drawTitle(context: Context, scene: Scene, row: GroupRow | LaneRow, y: number): void {
  const { colors } = scene;
  context.globalAlpha = 1;
  if (row.kind === "group") {
    context.fillStyle = colors.sunken;
    context.fillRect(0, y, scene.width, row.height);
    context.fillStyle = colors.border;
    context.fillRect(0, y, scene.width, 1);
    context.fillStyle = colors.text;
    context.font = `600 11.5px ${colors.font}`;
    context.fillText(`${row.isCollapsed ? "▸" : "▾"} ${fitted(row.title, 22)}`, 8, y + row.height / 2 + 0.5);
    context.fillStyle = colors.muted;
    context.font = `11px ${colors.font}`;
    context.fillText(fitted(row.detail, 90), GUTTER + 6, y + row.height / 2 + 0.5);
    return;
  }
  context.fillStyle = colors.surface;
  context.fillRect(0, y, GUTTER, row.height);
  context.fillStyle = colors.border;
  context.fillRect(GUTTER - 1, y, 1, row.height);
  context.font = `11px ${colors.font}`;
  if (row.height < 11) return;
  if (scene.highlight?.lanes.has(row.lane.lane_id) === true) {
    context.fillStyle = colors.bad;
    context.fillRect(0, y, 4, row.height - 1);
    context.font = `600 11px ${colors.font}`;
  }
  context.fillStyle = row.lane.open_spans > 0 ? colors.text : colors.muted;
  const middle = y + Math.min(row.height / 2, row.lineHeight / 2 + 1);
  context.fillText(fitted(row.title, 20), 20, middle);
  // A click on the name pins the lane.
  if (row.isPinned) context.fillText("★", 7, middle);
}

function drawHorizon(context: Context, scene: Scene, top: number): void {
  const x = GUTTER + timeToX(scene.horizon, scene.window, scene.width - GUTTER);
  if (x < GUTTER || x > scene.width) return;
  context.globalAlpha = 0.55;
  context.fillStyle = scene.colors.sunken;
  context.fillRect(x, top, scene.width - x, scene.height - top);
  context.globalAlpha = 1;
  context.fillStyle = scene.colors.accent;
  context.fillRect(Math.round(x), top, 1, scene.height - top);
}

function drawRange(context: Context, scene: Scene): void {
  if (scene.range === null) return;
  const lanes = scene.width - GUTTER;
  const from = Math.max(GUTTER, GUTTER + timeToX(scene.range.start, scene.window, lanes));
  const to = Math.min(scene.width, GUTTER + timeToX(scene.range.end, scene.window, lanes));
  if (to <= from) return;
  context.fillStyle = scene.colors.accent;
  context.globalAlpha = 0.13;
  context.fillRect(from, 0, to - from, scene.height);
  context.globalAlpha = 0.9;
  context.fillRect(from, 0, 1, scene.height);
  context.fillRect(to - 1, 0, 1, scene.height);
  context.globalAlpha = 1;
}

function drawPointer(context: Context, scene: Scene): void {
  if (scene.pointerX === null) return;
  context.globalAlpha = 0.35;
  context.fillStyle = scene.colors.text;
  context.fillRect(GUTTER + Math.round(scene.pointerX), AXIS_HEIGHT, 1, scene.height - AXIS_HEIGHT);
  context.globalAlpha = 1;
}

function drawScrollBar(context: Context, scene: Scene, top: number): void {
  const room = scene.height - top;
  if (scene.layout.height <= room) return;
  const size = Math.max(24, (room * room) / scene.layout.height);
  const y = top + ((room - size) * scene.scrollTop) / (scene.layout.height - room);
  context.globalAlpha = 0.4;
  context.fillStyle = scene.colors.muted;
  context.fillRect(scene.width - 7, y, 5, size);
  context.globalAlpha = 1;
}

/** Draws a minimap of the entire run, with the visible window. */
export function drawMap(context: Context, scene: Scene, whole: Window, height: number): void {
  const { colors, coarse, layout } = scene;
  const pixels = scene.width;
  context.globalAlpha = 1;
  context.fillStyle = colors.sunken;
  context.fillRect(0, 0, pixels, height);
  const lanes = layout.rows.filter(
    (row): row is LaneRow => row.kind === "lane" && (coarse === null || knowsLane(coarse, row.lane.lane_id)),
  );
  if (coarse !== null && lanes.length > 0) {
    const lineHeight = height / lanes.length;
    lanes.forEach((row, place) =>
      drawMapLane(
        context,
        scene,
        coarse,
        row,
        whole,
        place * lineHeight,
        Math.max(1, lineHeight - (lineHeight > 3 ? 1 : 0)),
      ),
    );
  }
  const from = Math.max(0, timeToX(scene.window.start, whole, pixels));
  const to = Math.min(pixels, Math.max(from + 3, timeToX(scene.window.end, whole, pixels)));
  context.globalAlpha = 0.62;
  context.fillStyle = colors.sunken;
  context.fillRect(0, 0, from, height);
  context.fillRect(to, 0, pixels - to, height);
  context.globalAlpha = 1;
  context.strokeStyle = colors.accent;
  context.lineWidth = 1.5;
  context.strokeRect(from + 0.75, 0.75, to - from - 1.5, height - 1.5);
}

function drawMapLane(
  context: Context,
  scene: Scene,
  blocks: Blocks,
  row: LaneRow,
  whole: Window,
  y: number,
  height: number,
): void {
  const lane = blocks.lanes.get(row.lane.lane_id);
  if (lane === undefined) return;
  // The innermost span is the most specific; deeper lines are drawn over outer ones.
  for (const line of lane.rows) {
    for (let index = line.first; index < line.end; index += 1) {
      const from = timeToX(blocks.start[index]!, whole, scene.width);
      const to = timeToX(endOf(blocks, index, scene.coarseGrowth), whole, scene.width);
      context.globalAlpha = 0.85;
      context.fillStyle =
        blocks.errors[index]! > 0 && scene.colorBy === "status"
          ? colorOfStatus("error")
          : blockColor(scene, blocks, index);
      context.fillRect(from, y, Math.max(1, to - from), height);
    }
  }
  context.globalAlpha = 1;
}
