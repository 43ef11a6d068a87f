// Which run the page shows if the address has none: the latest, which it then keeps.
import type { RunInfo } from "./api";

interface Shown {
  run: string | undefined;
  /** A run that began after the visible one, which was the latest when the page was opened. */
  newer: string | undefined;
}

/** Returns the run to show; `runs` are in the server's order, latest first. */
export function runToShow(runs: readonly RunInfo[], chosen: string, kept: string): Shown {
  if (chosen !== "") return { run: chosen, newer: undefined };
  const latest = runs.find((one) => !one.problem)?.run_id;
  const isKept = kept !== "" && (runs.length === 0 || runs.some((one) => one.run_id === kept));
  return isKept ? { run: kept, newer: latest === kept ? undefined : latest } : { run: latest, newer: undefined };
}
