// Draws the axis above the lanes and the lines across them: clock, steps, metrics.
import { formatClock, formatDate, formatDuration, tickTexts } from "../units";
import { firstAfter } from "./blocks";
import { ticks, timeToX, width, xToTime } from "./geometry";
import { AXIS_HEIGHT, GUTTER, STRIP_HEIGHT, type Scene, type StepMark, type Strip } from "./scene";

export type Context = CanvasRenderingContext2D;

/** The approximate width of a character in the small font. */
export const CHARACTER = 6.1;

/** Clips drawing to a box. */
export function clip(context: Context, x: number, y: number, w: number, h: number, draw: () => void): void {
  context.save();
  context.beginPath();
  context.rect(x, y, w, h);
  context.clip();
  draw();
  context.restore();
}

/** Text with at most this many characters. */
export function fitted(text: string, characters: number): string {
  return text.length <= characters ? text : `${text.slice(0, characters - 1)}…`;
}

/** Where steps begin, if there is room for lines. */
function visibleSteps(scene: Scene, apart: number): StepMark[] {
  const pixels = scene.width - GUTTER;
  const found = scene.steps.filter((mark) => mark.start >= scene.window.start && mark.start <= scene.window.end);
  const before = scene.steps.filter((mark) => mark.start < scene.window.start).at(-1);
  return found.length * apart > pixels ? [] : before === undefined ? found : [before, ...found];
}

/** Lines through all lanes where steps begin. */
export function drawStepLines(context: Context, scene: Scene, top: number): void {
  const pixels = scene.width - GUTTER;
  context.fillStyle = scene.colors.border;
  for (const mark of visibleSteps(scene, 6)) {
    context.fillRect(Math.round(GUTTER + timeToX(mark.start, scene.window, pixels)), top, 1, scene.height - top);
  }
}

/** The clock, and the steps. */
export function drawAxis(context: Context, scene: Scene): void {
  const { colors, width: pixels, window, origin } = scene;
  const lanes = pixels - GUTTER;
  context.globalAlpha = 1;
  context.fillStyle = colors.surface;
  context.fillRect(0, 0, pixels, AXIS_HEIGHT);
  context.font = `11px ${colors.font}`;
  context.fillStyle = colors.muted;
  context.fillText(`${formatDuration(width(window))} in view`, 8, 10);
  context.fillText(formatDate(origin + window.start).slice(0, 10), 8, 28.5);
  clip(context, GUTTER, 0, lanes, AXIS_HEIGHT, () => {
    const { distance, times } = ticks(window, lanes);
    // The date at the left is that of the first tick: only ticks that start another day show it.
    const clocks = tickTexts(
      times.map((time) => origin + time),
      origin + window.start,
    );
    times.forEach((time, place) => {
      const x = GUTTER + timeToX(time, window, lanes);
      context.fillStyle = colors.border;
      context.fillRect(Math.round(x), 4, 1, 14);
      context.fillStyle = colors.muted;
      context.fillText(distance >= 1e9 ? clocks[place]! : tickText(origin, time, distance), x + 4, 10);
    });
    drawStepBand(context, scene, lanes);
  });
  context.fillStyle = colors.border;
  context.fillRect(0, AXIS_HEIGHT - 1, pixels, 1);
}

/** A time with enough fractional digits to distinguish adjacent ticks. */
export function tickText(origin: number, time: number, distance: number): string {
  if (distance >= 1e6) return formatClock(origin + time, true);
  const second = Math.floor(time / 1e9) * 1e9;
  const digits = distance >= 1e3 ? 6 : 9;
  const fraction = String(Math.round(time - second))
    .padStart(9, "0")
    .slice(0, digits);
  const clock = formatClock(origin + second);
  // With nine digits there is no room for hours and minutes.
  return `${digits === 9 ? clock.slice(-2) : clock}.${fraction}`;
}

function drawStepBand(context: Context, scene: Scene, lanes: number): void {
  const marks = visibleSteps(scene, 6);
  marks.forEach((mark, place) => {
    const from = Math.max(GUTTER, GUTTER + timeToX(mark.start, scene.window, lanes));
    const next = marks[place + 1]?.start ?? scene.horizon;
    const to = Math.min(scene.width, GUTTER + timeToX(next, scene.window, lanes));
    if (to <= from) return;
    context.fillStyle = scene.colors.sunken;
    context.fillRect(from + 1, 21, to - from - 2, 14);
    const text = to - from > 50 ? `step ${mark.step}` : String(mark.step);
    if (text.length * CHARACTER + 6 > to - from) return;
    context.fillStyle = scene.colors.text;
    context.fillText(text, from + 5, 28.5);
  });
}

/** Metrics on the same time axis. */
export function drawStrips(context: Context, scene: Scene): void {
  const { colors, width: pixels } = scene;
  const lanes = pixels - GUTTER;
  scene.strips.forEach((strip, place) => {
    const top = AXIS_HEIGHT + place * STRIP_HEIGHT;
    context.globalAlpha = 1;
    context.fillStyle = colors.surface;
    context.fillRect(0, top, pixels, STRIP_HEIGHT);
    context.fillStyle = colors.text;
    context.font = `11px ${colors.font}`;
    context.fillText(fitted(strip.title, 22), 8, top + 11);
    context.fillStyle = colors.muted;
    context.fillText(`${strip.format(strip.low)} – ${strip.format(strip.high)}`, 8, top + 26);
    const room = strip.high > strip.low ? strip.high - strip.low : 1;
    const height = (value: number) => top + STRIP_HEIGHT - 5 - ((value - strip.low) / room) * (STRIP_HEIGHT - 10);
    clip(context, GUTTER, top, lanes, STRIP_HEIGHT, () => {
      for (const line of strip.lines) {
        context.strokeStyle = line.color;
        context.lineWidth = 1.4;
        context.beginPath();
        for (let index = 0; index < line.x.length; index += 1) {
          const x = GUTTER + timeToX(line.x[index]!, scene.window, lanes);
          // A value is valid until the next one: a jump is not a ramp.
          if (index === 0) context.moveTo(x, height(line.y[0]!));
          else {
            context.lineTo(x, height(line.y[index - 1]!));
            context.lineTo(x, height(line.y[index]!));
          }
        }
        context.stroke();
      }
      drawStripValues(context, scene, strip, top);
    });
    context.fillStyle = colors.border;
    context.fillRect(0, top + STRIP_HEIGHT - 1, pixels, 1);
  });
}

/** The lines that a strip names under the pointer: as many as fit. */
const MOST_VALUES = 4;

/** The value of a line at a time: the latest before it; null before the first. */
export function valueAt(line: Strip["lines"][number], time: number): number | null {
  const next = firstAfter(line.x, 0, line.x.length, time);
  return next === 0 ? null : line.y[next - 1]!;
}

function drawStripValues(context: Context, scene: Scene, strip: Strip, top: number): void {
  const lanes = scene.width - GUTTER;
  if (scene.pointerX === null) return;
  const time = xToTime(scene.pointerX, scene.window, lanes);
  const values = strip.lines
    .flatMap((line) => {
      const value = valueAt(line, time);
      return value === null ? [] : [{ line, text: `${line.label} ${strip.format(value)}`.trim() }];
    })
    .slice(0, MOST_VALUES);
  const wide = Math.max(0, ...values.map(({ text }) => text.length)) * CHARACTER + 16;
  const isRight = scene.pointerX + wide > lanes;
  const left = GUTTER + scene.pointerX + (isRight ? -wide : 6);
  values.forEach(({ line, text }, place) => {
    const y = top + 8 + place * 11;
    context.globalAlpha = 0.85;
    context.fillStyle = scene.colors.surface;
    context.fillRect(left, y - 6, wide, 11);
    context.globalAlpha = 1;
    context.fillStyle = line.color;
    context.fillRect(left + 2, y - 3, 6, 6);
    context.fillStyle = scene.colors.text;
    context.fillText(text, left + 12, y);
  });
}
