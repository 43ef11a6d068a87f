// Two runs side by side: the same quantities by step, and where their time differs.
import type { Hotspot, Step, StepMetric } from "../../api";
import { stepSeconds } from "../../overview/stepTimes";
import { byInterest } from "../metrics/interest";

export interface RunData {
  steps: readonly Step[];
  metrics: readonly StepMetric[];
  hotspots: readonly Hotspot[];
}

export const STEP_TIME = "step time";

/** A quantity of a run by step: its duration, or the mean of a gauge. */
export function byStep(run: RunData, quantity: string): Map<number, number> {
  if (quantity === STEP_TIME) return new Map(stepSeconds(run.steps).map((one) => [one.step, one.seconds]));
  return new Map(
    run.metrics.filter((metric) => metric.name === quantity).map((metric) => [metric.step, metric.average]),
  );
}

/** The quantities of both runs, most important first. */
export function commonQuantities(one: RunData, other: RunData): string[] {
  const known = new Set(other.metrics.map((metric) => metric.name));
  const names = [...new Set(one.metrics.map((metric) => metric.name))].filter((name) => known.has(name));
  return [STEP_TIME, ...byInterest(names)];
}

export interface Overlay {
  steps: number[];
  one: (number | null)[];
  other: (number | null)[];
}

/** Both runs' values on one axis of steps. */
export function overlay(one: ReadonlyMap<number, number>, other: ReadonlyMap<number, number>): Overlay {
  const steps = [...new Set([...one.keys(), ...other.keys()])].sort((first, second) => first - second);
  return {
    steps,
    one: steps.map((step) => one.get(step) ?? null),
    other: steps.map((step) => other.get(step) ?? null),
  };
}

export interface Difference {
  name: string;
  /** Wall time per step, in nanoseconds; null if a run has no such spans. */
  oneNs: number | null;
  otherNs: number | null;
  oneP95Ns: number | null;
  otherP95Ns: number | null;
  /** The additional time of the other run per step. */
  moreNs: number;
  /** The second divided by the first; null if one of them is missing. */
  ratio: number | null;
}

/** Where the time of two runs differs, the largest difference first; each run's time is divided by its steps. */
export function differences(one: RunData, other: RunData): Difference[] {
  const first = perStep(one);
  const second = perStep(other);
  const names = [...new Set([...first.keys(), ...second.keys()])];
  const found = names.map((name): Difference => {
    const [oneSpot, otherSpot] = [first.get(name), second.get(name)];
    return {
      name,
      oneNs: oneSpot?.wallNs ?? null,
      otherNs: otherSpot?.wallNs ?? null,
      oneP95Ns: oneSpot?.p95Ns ?? null,
      otherP95Ns: otherSpot?.p95Ns ?? null,
      moreNs: (otherSpot?.wallNs ?? 0) - (oneSpot?.wallNs ?? 0),
      ratio:
        oneSpot === undefined || otherSpot === undefined || oneSpot.wallNs === 0
          ? null
          : otherSpot.wallNs / oneSpot.wallNs,
    };
  });
  return found.sort((a, b) => Math.abs(b.moreNs) - Math.abs(a.moreNs));
}

function perStep(run: RunData): Map<string, { wallNs: number; p95Ns: number }> {
  const steps = Math.max(1, run.steps.length);
  return new Map(
    run.hotspots
      .filter((spot) => spot.name !== null)
      .map((spot) => [spot.name!, { wallNs: spot.wall_ns / steps, p95Ns: spot.p95_ns }]),
  );
}
