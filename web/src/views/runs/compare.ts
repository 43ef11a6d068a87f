// Two runs side by side: the same quantities by step.
import type { Metric, Step, StepMetric } from "../../api";
import { stepSeconds } from "../../overview/stepTimes";
import { byInterest } from "../metrics/interest";

export interface RunData {
  steps: readonly Step[];
  metrics: readonly StepMetric[];
  /** The list of its metrics. */
  listed: readonly Pick<Metric, "name" | "kind" | "interest" | "is_hardware">[];
}

export const STEP_TIME = "step time";
const FIRST_SHOWN = 4;

/** A quantity of a run by step: its duration, or the mean of a gauge. */
export function byStep(run: RunData, quantity: string): Map<number, number> {
  if (quantity === STEP_TIME) return new Map(stepSeconds(run.steps).map((one) => [one.step, one.seconds]));
  return new Map(
    run.metrics.filter((metric) => metric.name === quantity).map((metric) => [metric.step, metric.average]),
  );
}

/** The quantities of both runs, most important first. */
export function commonQuantities(one: RunData, other: RunData): string[] {
  const [first, second] = [one, other].map((run) => new Set(run.metrics.map((metric) => metric.name)));
  const common = one.listed.filter(({ name, kind }) => kind === "gauge" && first!.has(name) && second!.has(name));
  return [STEP_TIME, ...byInterest(common)];
}

/** The quantities to compare before the reader has chosen any: the most important ones, without hardware. */
export function firstShown(offered: readonly string[], run: RunData): string[] {
  const hardware = new Set(run.listed.filter((metric) => metric.is_hardware).map((metric) => metric.name));
  return offered.filter((name) => !hardware.has(name)).slice(0, FIRST_SHOWN);
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
