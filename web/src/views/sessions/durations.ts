// Session durations by step.
import type { StepDuration } from "../../reportFacts";
import { spreadOf } from "../../statistics";
import type { Sample } from "./data";

const BAD = new Set(["failed", "lost", "dropped", "cancelled"]);

/** How long the finished sessions of each step took, ordered by step; those without a step are excluded. */
export function durationsByStep(samples: readonly Sample[]): StepDuration[] {
  const steps = new Map<number, Sample[]>();
  for (const sample of samples) {
    if (sample.step == null) continue;
    const known = steps.get(sample.step);
    if (known === undefined) steps.set(sample.step, [sample]);
    else known.push(sample);
  }
  return [...steps]
    .sort(([one], [other]) => one - other)
    .flatMap(([step, of]) => {
      const { count, p50, p95, max } = spreadOf(of.map((sample) => sample.total_s));
      if (p50 === null || p95 === null || max === null) return [];
      return [{ step, count, p50, p95, max, failed: of.filter((sample) => BAD.has(sample.status ?? "")).length }];
    });
}
