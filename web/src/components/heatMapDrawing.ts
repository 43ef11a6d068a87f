// Draws a heat map on a canvas and finds the cell under the pointer; independent of React.
import type { Theme } from "../theme";

export interface HeatMapData {
  /** Where each column begins; ascending, in seconds or steps. */
  x: readonly number[];
  /** How wide a column is, in the same unit. */
  width: number;
  /** From top to bottom. */
  rows: readonly string[];
  /** One list per row with one value per column; null means unknown, not 0. */
  values: readonly (readonly (number | null)[])[];
}

export interface Cell {
  row: number;
  column: number;
}

export interface Layout {
  width: number;
  height: number;
  left: number;
  bottom: number;
}

/** Light to dark on a light page, dark to light on a dark one; only lightness encodes the value. */
const SCALES: Record<Theme, readonly (readonly [number, number, number])[]> = {
  light: [
    [222, 232, 244],
    [178, 205, 230],
    [94, 155, 205],
    [32, 98, 165],
    [8, 42, 96],
  ],
  dark: [
    [36, 50, 82],
    [38, 70, 120],
    [70, 125, 150],
    [150, 180, 110],
    [253, 231, 76],
  ],
};

/** The color of a value between 0 and 1. */
export function heatColor(share: number, theme: Theme): string {
  const scale = SCALES[theme];
  const place = Math.min(1, Math.max(0, share)) * (scale.length - 1);
  const below = Math.min(scale.length - 2, Math.floor(place));
  const [low, high] = [scale[below]!, scale[below + 1]!];
  const mixed = low.map((channel, index) => Math.round(channel + (high[index]! - channel) * (place - below)));
  return `rgb(${mixed.join(" ")})`;
}

/** The range of x that a map covers. */
export function extent({ x, width }: HeatMapData): [number, number] {
  return [x[0] ?? 0, (x.at(-1) ?? 0) + width];
}

/** The cell at a point of the canvas; null outside the map. */
export function cellAt(data: HeatMapData, layout: Layout, pointX: number, pointY: number): Cell | null {
  const [from, to] = extent(data);
  const plotWidth = layout.width - layout.left;
  const plotHeight = layout.height - layout.bottom;
  if (pointX < layout.left || pointY < 0 || pointY >= plotHeight || data.rows.length === 0) return null;
  const at = from + ((pointX - layout.left) / plotWidth) * (to - from);
  // The last that has begun: columns may overlap if values arrive at uneven intervals.
  let column = data.x.length - 1;
  while (column >= 0 && data.x[column]! > at) column -= 1;
  if (column < 0 || at >= data.x[column]! + data.width) return null;
  return { row: Math.min(data.rows.length - 1, Math.floor((pointY / plotHeight) * data.rows.length)), column };
}

/** Where a cell is on the canvas. */
export function cellBox(
  data: HeatMapData,
  layout: Layout,
  { row, column }: Cell,
): { x: number; y: number; width: number; height: number } {
  const [from, to] = extent(data);
  const scale = (layout.width - layout.left) / (to - from || 1);
  const height = (layout.height - layout.bottom) / Math.max(1, data.rows.length);
  return { x: layout.left + (data.x[column]! - from) * scale, y: row * height, width: data.width * scale, height };
}

export interface Style {
  theme: Theme;
  text: string;
  mutedText: string;
  font: string;
  range: readonly [number, number];
  /** Use a logarithmic scale, so that small counts remain visible next to large ones. */
  isLogarithmic: boolean;
  formatX: (x: number) => string;
  marked: Cell | null;
  /** Times to mark on the axis. */
  marks: readonly { x: number; color: string }[];
}

/** A value's position in the range, from 0 to 1. */
export function shareOf(value: number, [low, high]: readonly [number, number], isLogarithmic: boolean): number {
  if (high <= low) return value > low ? 1 : 0;
  if (!isLogarithmic) return (value - low) / (high - low);
  return Math.log1p(Math.max(0, value - low)) / Math.log1p(high - low);
}

export function drawHeatMap(context: CanvasRenderingContext2D, data: HeatMapData, layout: Layout, style: Style): void {
  context.clearRect(0, 0, layout.width, layout.height);
  for (let row = 0; row < data.rows.length; row += 1) {
    const values = data.values[row] ?? [];
    for (let column = 0; column < data.x.length; column += 1) {
      const value = values[column];
      if (value === null || value === undefined) continue;
      const box = cellBox(data, layout, { row, column });
      context.fillStyle = heatColor(shareOf(value, style.range, style.isLogarithmic), style.theme);
      // Whole pixels: blurred edges would create a pattern.
      const [left, right] = [Math.round(box.x), Math.round(box.x + box.width)];
      const [top, bottom] = [Math.round(box.y), Math.round(box.y + box.height)];
      const gap = box.height > 8 ? 1 : 0;
      context.fillRect(left, top, Math.max(1, right - left), Math.max(1, bottom - top - gap));
    }
  }
  context.font = `11px ${style.font}`;
  context.fillStyle = style.mutedText;
  context.textBaseline = "middle";
  drawRowLabels(context, data, layout);
  drawTicks(context, data, layout, style.formatX);
  drawMarks(context, data, layout, style.marks);
  if (style.marked !== null) {
    const box = cellBox(data, layout, style.marked);
    context.strokeStyle = style.text;
    context.lineWidth = 1.5;
    context.strokeRect(box.x, box.y, Math.max(2, box.width), box.height);
  }
}

function drawRowLabels(context: CanvasRenderingContext2D, data: HeatMapData, layout: Layout): void {
  const height = (layout.height - layout.bottom) / Math.max(1, data.rows.length);
  const every = Math.max(1, Math.ceil(13 / height));
  context.textAlign = "right";
  for (let row = 0; row < data.rows.length; row += every) {
    context.fillText(data.rows[row]!, layout.left - 8, (row + 0.5) * height, layout.left - 10);
  }
}

function drawTicks(
  context: CanvasRenderingContext2D,
  data: HeatMapData,
  layout: Layout,
  formatX: (x: number) => string,
): void {
  const [from, to] = extent(data);
  const wanted = Math.max(1, Math.floor((layout.width - layout.left) / 110));
  context.textAlign = "center";
  for (let tick = 0; tick < wanted; tick += 1) {
    const share = (tick + 0.5) / wanted;
    context.fillText(
      formatX(from + share * (to - from)),
      layout.left + share * (layout.width - layout.left),
      layout.height - layout.bottom / 2,
    );
  }
}

function drawMarks(context: CanvasRenderingContext2D, data: HeatMapData, layout: Layout, marks: Style["marks"]): void {
  const [from, to] = extent(data);
  const bottom = layout.height - layout.bottom;
  for (const { x, color } of marks) {
    if (x < from || x > to) continue;
    const at = layout.left + ((x - from) / (to - from || 1)) * (layout.width - layout.left);
    context.fillStyle = color;
    context.beginPath();
    context.moveTo(at - 4, bottom + 7);
    context.lineTo(at + 4, bottom + 7);
    context.lineTo(at, bottom);
    context.fill();
  }
}
