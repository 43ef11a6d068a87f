/** Half a minute or one step to each side of a single point: without it, its axis would be a day or more. */
const AROUND = { time: 30, step: 1 } as const;
const BAR_MARGIN = 0.6;

type Bounds = [number | null, number | null];

/** The bounds of a chart's x axis, from its x values; null if there is nothing to show. */
export function xRange(x: ArrayLike<number>, kind: "time" | "step", isBars: boolean): Bounds {
  const from = x[0];
  const to = x[x.length - 1];
  if (from === undefined || to === undefined) return [null, null];
  if (isBars) return [from - BAR_MARGIN, to + BAR_MARGIN];
  return from === to ? [from - AROUND[kind], to + AROUND[kind]] : [from, to];
}

/** The width of an axis with these labels, in pixels: the same for most charts, so that they line up. */
export function axisWidth(labels: readonly string[] | null): number {
  return Math.max(62, ...(labels ?? []).map((label) => 14 + 6.4 * label.length));
}
