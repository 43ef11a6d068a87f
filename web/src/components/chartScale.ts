/** Half a minute or one step to each side of a single point: without it, its axis would be a day or more. */
const AROUND = { time: 30, step: 1 } as const;
const BAR_MARGIN = 0.6;

type Bounds = [number | null, number | null];

/** From where to where the x axis of a chart reaches; null where there is nothing to show. */
export function xRange(from: number | null, to: number | null, kind: "time" | "step", isBars: boolean): Bounds {
  if (from === null || to === null) return [null, null];
  if (isBars) return [from - BAR_MARGIN, to + BAR_MARGIN];
  return from === to ? [from - AROUND[kind], to + AROUND[kind]] : [from, to];
}
