import { useRef } from "react";
import { type Step, type StepMetric, api } from "./api";
import { useQuery } from "./useQuery";

/** Late data may still change the newest steps; older ones are requested once. */
const UNSETTLED = 4;
const NEWEST = 12;

/** Merges new data of the newest steps into the known steps, replacing them. */
export function joinSteps<T extends { step: number }>(known: readonly T[], news: readonly T[], most: number): T[] {
  const first = Math.min(...news.map((one) => one.step));
  const joined = [...known.filter((one) => one.step < first), ...news];
  const last = joined.at(-1)?.step ?? 0;
  return joined.filter((one) => one.step > last - most);
}

/** The latest steps of a run; after the first response only the newest are requested. With `last`, the steps up to it. */
export function useSteps(run: string, most: number, last?: number): readonly Step[] | undefined {
  const known = useRef<{ run: string; steps: Step[] }>({ run, steps: [] });
  const { data } = useQuery(
    `steps ${run} ${most} ${last ?? ""}`,
    async (signal) => {
      if (last !== undefined) return api.steps({ run, limit: most, last }, signal);
      const old = known.current.run === run ? known.current.steps : [];
      const news = await api.steps({ run, limit: old.length < NEWEST ? most : NEWEST }, signal);
      // If steps arrived faster than we polled, fill the gap.
      const isGap = old.length > 0 && (news[0]?.step ?? 0) > (old.at(-1)?.step ?? 0) + 1;
      const steps = joinSteps(old, isGap ? await api.steps({ run, limit: most }, signal) : news, most);
      known.current = { run, steps };
      return steps;
    },
    { everyMs: 1500 },
  );
  return data;
}

interface Known {
  run: string;
  first: number;
  until: number;
  rows: StepMetric[];
}

/** The gauges of some steps; settled steps are not loaded again. */
export function useStepMetrics(run: string, steps: readonly Step[] | undefined): readonly StepMetric[] | undefined {
  const known = useRef<Known | null>(null);
  const first = steps?.[0]?.step;
  const last = steps?.at(-1)?.step;
  // For steps that no longer change, another window is another query.
  const isLatest = steps?.at(-1)?.end_ns === null;
  const { data } = useQuery(
    `step metrics ${run} ${isLatest ? "" : `${first} ${last}`}`,
    async (signal) => {
      if (first === undefined || last === undefined) return [];
      const old = known.current;
      const isUsable = old !== null && old.run === run && old.first <= first && old.until >= first;
      const from = isUsable ? Math.max(first, old.until - UNSETTLED + 1) : first;
      const news = await api.stepMetrics({ run, first: from, last }, signal);
      const rows = [...(isUsable ? old.rows.filter((row) => row.step >= first && row.step < from) : []), ...news];
      known.current = { run, first, until: last, rows };
      return rows;
    },
    { enabled: steps !== undefined, everyMs: 1500 },
  );
  return data;
}
