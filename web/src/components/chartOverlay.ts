// Draws the overlay of a chart: marks, the window that all views share, and values that are not
// numbers.
import type uPlot from "uplot";
import type { Mark } from "../api";
import { markToken } from "../marks";
import { token } from "../theme";
import { frequentNames } from "./frequentNames";

export interface Overlay {
  xKind: "time" | "step";
  marks: readonly Mark[];
  /** Where the window begins and ends, as x values; null for none. */
  band: readonly [number, number] | null;
  /** The x values at which a series is not a number, or infinite. */
  wrong: readonly number[];
}

/** With more marks than this, only their heads are drawn, not their lines. */
const MANY_MARKS = 40;
const REACH = 6;

/** The position of a mark on an axis; null if it has none. */
export function placeOf(mark: Mark, xKind: Overlay["xKind"]): number | null {
  return xKind === "time" ? mark.time_ns / 1e9 : mark.step;
}

/** The marks near a position in the plot, in pixels from its left. */
export function marksNear(plot: uPlot, { marks, xKind }: Overlay, left: number): Mark[] {
  return marks.filter((mark) => {
    const x = placeOf(mark, xKind);
    return x !== null && Math.abs(plot.valToPos(x, "x") - left) <= REACH;
  });
}

export function drawOverlay(plot: uPlot, { marks, xKind, band, wrong }: Overlay): void {
  const { ctx: context, bbox } = plot;
  const { min = -Infinity, max = Infinity } = plot.scales["x"] ?? {};
  const isInside = (x: number) => x >= min && x <= max;
  const ratio = window.devicePixelRatio;
  context.save();
  context.beginPath();
  context.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  context.clip();
  if (band !== null) {
    const [from, to] = band.map((x) => plot.valToPos(x, "x", true));
    context.fillStyle = token("--accent");
    context.globalAlpha = 0.14;
    context.fillRect(from!, bbox.top, Math.max(2 * ratio, to! - from!), bbox.height);
    context.globalAlpha = 1;
  }
  const shown = marks.flatMap((mark) => {
    const x = placeOf(mark, xKind);
    return x !== null && isInside(x) ? [{ mark, left: plot.valToPos(x, "x", true) }] : [];
  });
  const frequent = frequentNames(shown.map(({ mark }) => mark));
  const rare = shown.filter(({ mark }) => !frequent.has(mark.name));
  context.globalAlpha = 0.5;
  for (const { mark, left } of shown) {
    if (!frequent.has(mark.name)) continue;
    context.fillStyle = token(markToken(mark));
    context.fillRect(left, bbox.top, ratio, 3 * ratio);
  }
  context.globalAlpha = 1;
  for (const { mark, left } of rare) {
    const color = token(markToken(mark));
    if (rare.length <= MANY_MARKS) line(context, left, bbox.top, bbox.top + bbox.height, color, ratio);
    context.fillStyle = color;
    context.beginPath();
    context.moveTo(left - 4 * ratio, bbox.top);
    context.lineTo(left + 4 * ratio, bbox.top);
    context.lineTo(left, bbox.top + 6 * ratio);
    context.fill();
  }
  context.font = `600 ${10 * ratio}px ${token("--font")}`;
  context.textAlign = "center";
  for (const x of wrong.filter(isInside)) {
    const left = plot.valToPos(x, "x", true);
    line(context, left, bbox.top, bbox.top + bbox.height, token("--bad"), ratio);
    context.fillStyle = token("--bad");
    context.fillText("NaN", left, bbox.top + bbox.height - 4 * ratio);
  }
  context.restore();
}

function line(
  context: CanvasRenderingContext2D,
  x: number,
  top: number,
  bottom: number,
  color: string,
  ratio: number,
): void {
  context.strokeStyle = color;
  context.lineWidth = ratio;
  context.setLineDash([3 * ratio, 4 * ratio]);
  context.beginPath();
  context.moveTo(x, top);
  context.lineTo(x, bottom);
  context.stroke();
  context.setLineDash([]);
}
