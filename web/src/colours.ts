// Colours: one name has one colour in every view and every run. The palette stays distinguishable with the common kinds of
// colour blindness (after Okabe-Ito and Tol, with lightness varied too); waiting is always grey, so bubbles look empty.

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

/** Black or white, whichever reads better on a colour `#rrggbb`. */
export function textOn(colour: string): string {
  const channel = (from: number) => (Number.parseInt(colour.slice(from, from + 2), 16) / 255) ** 2.2;
  const luminance = 0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5);
  return luminance > 0.18 ? "#101418" : "#ffffff";
}
