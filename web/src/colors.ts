// Colors: one name has one color in every view and every run. The palette stays distinguishable with the common kinds of
// color blindness (after Okabe-Ito and Tol, with lightness varied too); waiting is always gray, so bubbles look empty.

import { WAITING_PATTERN } from "./waiting";
import type { Theme } from "./theme";

/** For names without a known meaning. */
export const PALETTE: readonly string[] = [
  "#0072b2",
  "#e69f00",
  "#009e73",
  "#cc79a7",
  "#56b4e9",
  "#d55e00",
  "#7a6fd0",
  "#b5a642",
  "#44aa99",
  "#aa4466",
  "#88ccee",
  "#997700",
  "#5b8c2a",
  "#dd8fb5",
  "#336699",
  "#c98b5e",
];

const WAITING = "#9aa3af";
/** Time in which a lane recorded nothing: darker than waiting, which is recorded. */
export const IDLE = "#626b78";
const WAITING_NAME = new RegExp(WAITING_PATTERN);

/** Whether a name means waiting, as the server decides it. */
export function isWaiting(name: string): boolean {
  return WAITING_NAME.test(name);
}

/** Common words with a fixed color; the first match counts. */
const KNOWN: readonly (readonly [RegExp, string])[] = [
  [WAITING_NAME, WAITING],
  [/tool/i, "#d55e00"],
  [/(reward|score|verif|judge)/i, "#cc79a7"],
  [/(checkpoint|load|save)/i, "#8a5a9e"],
  [/(weight|sync|broadcast)/i, "#7a6fd0"],
  [/(rollout|produce|agent|session|trajector|episode)/i, "#0072b2"],
  [/(execut)/i, "#336699"],
  [/prefill/i, "#44aa99"],
  [/(generat|decode|infer|sampl)/i, "#56b4e9"],
  [/(backward)/i, "#b35a00"],
  [/(log_?prob)/i, "#997700"],
  [/advantage/i, "#5b8c2a"],
  [/(forward)/i, "#b5a642"],
  [/(update|optim)/i, "#e69f00"],
  [/(train|actor|policy)/i, "#c98b5e"],
  [/(queue|buffer|enqueue)/i, "#44aa99"],
  [/(data|batch|tokeni[sz])/i, "#009e73"],
];

export type Status = "ok" | "error" | "cancelled" | "open";

export const STATUS_COLORS: Record<Status, string> = {
  ok: "#2c8c7c",
  error: "#d1372c",
  cancelled: "#8a8f98",
  open: "#e69f00",
};

/** A fast, even hash of text (FNV-1a). */
export function hashText(text: string): number {
  let hash = 0x811c9dc5;
  for (let index = 0; index < text.length; index += 1) {
    hash = Math.imul(hash ^ text.charCodeAt(index), 0x01000193);
  }
  return hash >>> 0;
}

const remembered = new Map<string, string>();

/** The color of a name, the same everywhere. */
export function colorOfName(name: string): string {
  let color = remembered.get(name);
  if (color === undefined) {
    color = KNOWN.find(([pattern]) => pattern.test(name))?.[1] ?? PALETTE[hashText(name) % PALETTE.length]!;
    if (remembered.size > 50_000) remembered.clear();
    remembered.set(name, color);
  }
  return color;
}

/** Colors for lines of one chart: in order, so that neighbors always differ. */
export function colorOfIndex(index: number): string {
  return PALETTE[index % PALETTE.length]!;
}

/** The color of a training step: neighbors differ clearly. */
export function colorOfStep(step: number | null): string {
  return step === null ? WAITING : PALETTE[(((step * 5) % PALETTE.length) + PALETTE.length) % PALETTE.length]!;
}

/** The color of a status. */
export function colorOfStatus(status: string): string {
  return (STATUS_COLORS as Readonly<Record<string, string>>)[status] ?? STATUS_COLORS.ok;
}

/** The red, green and blue of a color `#rrggbb`, from 0 to 255. */
function channels(color: string): number[] {
  return [1, 3, 5].map((from) => Number.parseInt(color.slice(from, from + 2), 16));
}

/** How light a color is, from 0 to 1, as WCAG computes it. */
function luminance(color: string): number {
  const [red, green, blue] = channels(color).map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red! + 0.7152 * green! + 0.0722 * blue!;
}

/** The contrast of two colors, from 1 to 21. */
export function contrast(one: string, other: string): number {
  const [dark, light] = [luminance(one), luminance(other)].sort((first, second) => first - second);
  return (light! + 0.05) / (dark! + 0.05);
}

/** Black or white, whichever reads better on a color `#rrggbb`. */
export function textOn(color: string): string {
  return luminance(color) > 0.18 ? "#101418" : "#ffffff";
}

/** The background of charts: `--surface` of each theme. */
export const SURFACES: Readonly<Record<Theme, string>> = { light: "#ffffff", dark: "#151a22" };
const LINE_CONTRAST = 3;

/** A color for a thin line: darker or lighter if it has too little contrast with the theme's surface. */
export function lineColor(color: string, theme: Theme): string {
  if (!/^#[0-9a-f]{6}$/i.test(color)) return color;
  const toward = theme === "light" ? 0 : 255;
  let shown = color;
  for (let share = 0.04; contrast(shown, SURFACES[theme]) < LINE_CONTRAST; share += 0.04) {
    const mixed = channels(color).map((value) => Math.round(value + (toward - value) * share));
    shown = `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
  }
  return shown;
}
