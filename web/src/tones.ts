// The ages from which open work counts as long, and as stuck.

export type Tone = "good" | "warning" | "bad" | "plain";

interface Bound {
  times: number;
  seconds: number;
}

/** A multiple of the usual duration, and a minimum in seconds. */
const LONG: Bound = { times: 3, seconds: 30 };
const STALLED: Bound = { times: 10, seconds: 120 };

/** The tone of an age relative to the usual duration, both in seconds. */
export function toneOfAge(age: number, usual: number): Tone {
  const isPast = (bound: Bound) => age >= Math.max(bound.seconds, bound.times * (usual || 0));
  return isPast(STALLED) ? "bad" : isPast(LONG) ? "warning" : "good";
}

/** The tone of the age of open work relative to its long durations; plain if no such work has ended. */
export function toneOfWork(age: number, long: number | null): Tone {
  return long === null ? "plain" : toneOfAge(age, long);
}

export const AGE_CLASSES: Readonly<Record<Tone, string>> = { good: "", plain: "muted", warning: "warning", bad: "bad" };
