// From which age on work that has not ended is long, and from which on it is stuck.

export type Tone = "good" | "warning" | "bad" | "plain";

interface Bound {
  times: number;
  seconds: number;
}

/** So many times the usual duration, and at least so many seconds. */
const LONG: Bound = { times: 3, seconds: 30 };
const STALLED: Bound = { times: 10, seconds: 120 };

/** How an age compares with a usual duration, both in seconds. */
export function toneOfAge(age: number, usual: number): Tone {
  const isPast = (bound: Bound) => age >= Math.max(bound.seconds, bound.times * (usual || 0));
  return isPast(STALLED) ? "bad" : isPast(LONG) ? "warning" : "good";
}

/** How the age of open work compares with the longest that is common; plain where none of its like has ended. */
export function toneOfWork(age: number, long: number | null): Tone {
  return long === null ? "plain" : toneOfAge(age, long);
}

export const AGE_CLASSES: Readonly<Record<Tone, string>> = { good: "", plain: "muted", warning: "warning", bad: "bad" };
