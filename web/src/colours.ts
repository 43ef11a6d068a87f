// Colours: one name has one colour in every view and every run. The palette stays distinguishable with the common kinds of
// colour blindness (after Okabe-Ito and Tol, with lightness varied too); waiting is always grey, so bubbles look empty.

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
const WAITING_NAME = /(^|[._\-/ ])(wait|waiting|idle|bubble|blocked|sleep)/i;

/** Whether a name means doing nothing. */
export function isWaiting(name: string): boolean {
  return WAITING_NAME.test(name);
}

/** Words of this field whose colour should never depend on chance; the first that fits counts. */
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

export const STATUS_COLOURS: Record<Status, string> = {
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

/** The colour of a name: the same everywhere. */
export function colourOfName(name: string): string {
  let colour = remembered.get(name);
  if (colour === undefined) {
    colour = KNOWN.find(([pattern]) => pattern.test(name))?.[1] ?? PALETTE[hashText(name) % PALETTE.length]!;
    if (remembered.size > 50_000) remembered.clear();
    remembered.set(name, colour);
  }
  return colour;
}

/** Colours for lines of one chart: in order, so that neighbours always differ. */
export function colourOfIndex(index: number): string {
  return PALETTE[index % PALETTE.length]!;
}

/** The colour of a training step: neighbours differ clearly. */
export function colourOfStep(step: number | null): string {
  return step === null ? WAITING : PALETTE[(((step * 5) % PALETTE.length) + PALETTE.length) % PALETTE.length]!;
}

/** The colour of a status. */
export function colourOfStatus(status: string): string {
  return (STATUS_COLOURS as Readonly<Record<string, string>>)[status] ?? STATUS_COLOURS.ok;
}

/** The red, green and blue of a colour `#rrggbb`, from 0 to 255. */
function channels(colour: string): number[] {
  return [1, 3, 5].map((from) => Number.parseInt(colour.slice(from, from + 2), 16));
}

/** How light a colour is, from 0 to 1, as WCAG computes it. */
function luminance(colour: string): number {
  const [red, green, blue] = channels(colour).map((value) => {
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

/** Black or white, whichever reads better on a colour `#rrggbb`. */
export function textOn(colour: string): string {
  return luminance(colour) > 0.18 ? "#101418" : "#ffffff";
}

/** What charts are drawn on: `--surface` of each theme. */
export const SURFACES: Readonly<Record<Theme, string>> = { light: "#ffffff", dark: "#151a22" };
const LINE_CONTRAST = 3;

/** A colour for a thin line: darker or lighter where it would hardly be seen on the theme's surface. */
export function lineColour(colour: string, theme: Theme): string {
  if (!/^#[0-9a-f]{6}$/i.test(colour)) return colour;
  const towards = theme === "light" ? 0 : 255;
  let shown = colour;
  for (let share = 0.04; contrast(shown, SURFACES[theme]) < LINE_CONTRAST; share += 0.04) {
    const mixed = channels(colour).map((value) => Math.round(value + (towards - value) * share));
    shown = `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
  }
  return shown;
}
