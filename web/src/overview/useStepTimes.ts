import { useRef } from "react";
import { type StepTime, api } from "../api";
import { useQuery } from "../useQuery";

/** Late data may still change the newest steps; older ones are asked for once. */
const UNSETTLED = 4;
const KEPT = 1000;

interface Known {
  run: string;
  until: number;
  first: number;
  steps: Map<number, StepTime[]>;
}

/** Loads where the time of some steps went; steps that cannot change any more are not loaded again. */
export function useStepTimes(run: string, first: number | undefined, last: number | undefined): readonly StepTime[] | undefined {
  const known = useRef<Known>({ run, until: -Infinity, first: Infinity, steps: new Map() });
  const { data } = useQuery(
    `step times ${run}`,
    async (signal) => {
      if (first === undefined || last === undefined) return undefined;
      if (known.current.run !== run || first < known.current.first) known.current = { run, until: -Infinity, first, steps: new Map() };
      const { steps, until } = known.current;
      const from = Math.max(first, until - UNSETTLED + 1);
      if (from <= last) {
        const news = await api.stepTimes({ run, first: from, last }, signal);
        for (let step = from; step <= last; step += 1) steps.delete(step);
        for (const time of news) steps.set(time.step, [...(steps.get(time.step) ?? []), time]);
        known.current.until = last;
      }
      for (const step of steps.keys()) if (step < last - KEPT) steps.delete(step);
      return [...steps].filter(([step]) => step >= first && step <= last).flatMap(([, times]) => times);
    },
    { enabled: last !== undefined, everyMs: 1500 },
  );
  return data;
}
