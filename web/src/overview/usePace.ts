import type { StepPace } from "../api";
import { type Query, useAnswer } from "../useQuery";

/** How long the latest steps, or those up to `last`, took compared with typical ones. */
export function usePace(run: string, limit: number, last?: number, enabled = true): Query<StepPace> {
  // A run that has stalled has no new data, but its running step grows older.
  return useAnswer("steps/pace", { run, limit, last }, { everyMs: 1500, pollMs: 3000, enabled });
}
