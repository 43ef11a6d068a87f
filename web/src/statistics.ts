// Quantiles and histograms of loaded values.
import type { DurationBin } from "./api";

/** The value below which a share (0 to 1) of sorted values lies, interpolated; null for none. */
export function quantile(sorted: readonly number[], share: number): number | null {
  if (sorted.length === 0) return null;
  const place = share * (sorted.length - 1);
  const below = Math.floor(place);
  const low = sorted[below]!;
  const high = sorted[Math.min(below + 1, sorted.length - 1)]!;
  return low + (high - low) * (place - below);
}

export function sumOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}

/** The mean of the known values; null without any. */
export function meanOf(values: readonly (number | null)[]): number | null {
  const known = values.filter((value) => value !== null);
  return known.length === 0 ? null : sumOf(known) / known.length;
}

/** NaN without values. */
export function median(values: readonly number[]): number {
  return spreadOf(values).p50 ?? Number.NaN;
}

export interface Spread {
  count: number;
  p50: number | null;
  p95: number | null;
  p99: number | null;
  max: number | null;
  sorted: readonly number[];
}

/** The spread of values; NaN is ignored. */
export function spreadOf(values: Iterable<number | null | undefined>): Spread {
  const sorted = [...values]
    .filter((value): value is number => Number.isFinite(value))
    .sort((one, other) => one - other);
  return {
    count: sorted.length,
    p50: quantile(sorted, 0.5),
    p95: quantile(sorted, 0.95),
    p99: quantile(sorted, 0.99),
    max: sorted.at(-1) ?? null,
    sorted,
  };
}

/** Horizontal lines at p50 and p95, for a chart of points. */
export function quantileLines(
  p50: number,
  p95: number,
  points: number,
): { label: string; color: string; values: number[]; isLine: true; isDashed: true }[] {
  const line = (label: string, level: number, color: string) => ({
    label,
    color,
    values: Array.from({ length: points }, () => level),
    isLine: true as const,
    isDashed: true as const,
  });
  return [line("p50", p50, "#8a8f98"), line("p95", p95, "#c8553d")];
}

/** Counts sorted values in equal intervals; on a logarithmic scale if they span more than two decades. */
export function binsOf(sorted: readonly number[], wanted: number): DurationBin[] {
  const low = sorted[0];
  const high = sorted.at(-1);
  if (low === undefined || high === undefined) return [];
  if (low === high) return [{ from_s: low, to_s: high, count: sorted.length }];
  const isLogarithmic = low > 0 && high / low > 100;
  const [from, to] = isLogarithmic ? [Math.log(low), Math.log(high)] : [low, high];
  const edge = (index: number) => {
    const at = from + ((to - from) * index) / wanted;
    return isLogarithmic ? Math.exp(at) : at;
  };
  const bins = Array.from({ length: wanted }, (_, index) => ({ from_s: edge(index), to_s: edge(index + 1), count: 0 }));
  for (const value of sorted) {
    const at = ((isLogarithmic ? Math.log(value) : value) - from) / (to - from);
    bins[Math.min(wanted - 1, Math.floor(at * wanted))]!.count += 1;
  }
  return bins;
}

/** The position of a value among bins, from 0 to 1, on the bins' own scale, so that marks line up with the bars. */
export function placeInBins(bins: readonly DurationBin[], value: number): number {
  const index = bins.findIndex((bin) => value <= bin.to_s);
  if (index < 0) return 1;
  const bin = bins[index]!;
  const within = bin.to_s > bin.from_s ? Math.max(0, (value - bin.from_s) / (bin.to_s - bin.from_s)) : 0.5;
  return (index + within) / bins.length;
}
