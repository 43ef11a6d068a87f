import { useRef } from "react";
import { type Step, type StepMetric, api } from "./api";
import { useQuery } from "./useQuery";

/** Late data may still change the newest steps; older ones are asked for once. */
const UNSETTLED = 4;
const NEWEST = 12;

/** Joins what is known with news about the newest steps, which replace what was known of them. */
export function joinSteps<T extends { step: number }>(known: readonly T[], news: readonly T[], most: number): T[] {
  const first = Math.min(...news.map((one) => one.step));
  const joined = [...known.filter((one) => one.step < first), ...news];
  const last = joined.at(-1)?.step ?? 0;
  return joined.filter((one) => one.step > last - most);
}

/** The latest steps of a run; after the first answer only the newest are asked for. With `last`, those up to it. */
export function useSteps(run: string, most: number, last?: number): readonly Step[] | undefined {
  const known = useRef<{ run: string; steps: Step[] }>({ run, steps: [] });
  const { data } = useQuery(
    `steps ${run} ${most} ${last ?? ""}`,
    async (signal) => {
      if (last !== undefined) return api.steps({ run, limit: most, last }, signal);
      const old = known.current.run === run ? known.current.steps : [];
      const news = await api.steps({ run, limit: old.length < NEWEST ? most : NEWEST }, signal);
      // Where steps came faster than we looked, there is a gap to close.
      const isGap = old.length > 0 && (news[0]?.step ?? 0) > (old.at(-1)?.step ?? 0) + 1;
      const steps = joinSteps(old, isGap ? await api.steps({ run, limit: most }, signal) : news, most);
      known.current = { run, steps };
      return steps;
    },
    { everyMs: 1500 },
  );
  return data;
}

interface Known<T> {
  run: string;
  first: number;
  until: number;
  rows: T[];
}

function useByStep<T extends { step: number }>(
  what: string,
  run: string,
  steps: readonly Step[] | undefined,
  ask: (query: { run: string; first: number; last: number }, signal: AbortSignal) => Promise<T[]>,
): readonly T[] | undefined {
  const known = useRef<Known<T> | null>(null);
  const first = steps?.[0]?.step;
  const last = steps?.at(-1)?.step;
  // Of steps that no longer change, another window is another question.
  const isLatest = steps?.at(-1)?.end_ns === null;
  const { data } = useQuery(
    `${what} ${run} ${isLatest ? "" : `${first} ${last}`}`,
    async (signal) => {
      if (first === undefined || last === undefined) return [];
      const old = known.current;
      const isUsable = old !== null && old.run === run && old.first <= first && old.until >= first;
      const from = isUsable ? Math.max(first, old.until - UNSETTLED + 1) : first;
      const news = await ask({ run, first: from, last }, signal);
      const rows = [...(isUsable ? old.rows.filter((row) => row.step >= first && row.step < from) : []), ...news];
      known.current = { run, first, until: last, rows };
      return rows;
    },
    { enabled: steps !== undefined, everyMs: 1500 },
  );
  return data;
}

/** The gauges of some steps; steps that cannot change any more are not loaded again. */
export function useStepMetrics(run: string, steps: readonly Step[] | undefined): readonly StepMetric[] | undefined {
  return useByStep("step metrics", run, steps, api.stepMetrics);
}
