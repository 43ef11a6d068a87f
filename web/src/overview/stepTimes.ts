// Small calculations over the steps from the server.
import type { Breakdown, Step, StepComparison } from "../api";
import { IDLE, colorOfName } from "../colors";
import { sumOf } from "../statistics";
import { formatDuration } from "../units";

/** How long each finished step took, in seconds. */
export function stepSeconds(steps: readonly Step[]): { step: number; seconds: number }[] {
  return steps.flatMap(({ step, start_ns, end_ns }) =>
    end_ns === null ? [] : [{ step, seconds: (end_ns - start_ns) / 1e9 }],
  );
}

export interface Bars {
  steps: number[];
  /** From the bottom to the top. */
  phases: { name: string; seconds: number[] }[];
}

const IDLE_NAME = "idle";

/** The color of a part of the bars. */
export function barColor(name: string): string {
  return name === IDLE_NAME ? IDLE : colorOfName(name);
}

/** The bars of a breakdown: its phases, the smaller ones combined, and the idle time at the top. */
export function barsOf({ steps }: Breakdown, most = 8): Bars {
  const names = [...new Set(steps.flatMap((step) => step.phases.map((phase) => phase.name)))];
  const all = names.map((name) => ({
    name,
    seconds: steps.map((step) => (step.phases.find((phase) => phase.name === name)?.wall_ns ?? 0) / 1e9),
  }));
  all.sort((one, other) => sumOf(other.seconds) - sumOf(one.seconds));
  const phases = all.length <= most ? all : all.slice(0, most - 1);
  const rest = all.slice(phases.length);
  if (rest.length > 0) {
    const seconds = steps.map((_, place) => sumOf(rest.map((one) => one.seconds[place]!)));
    phases.push({ name: `${rest.length} others`, seconds });
  }
  const idle = steps.map((step) => step.idle_ns / 1e9);
  if (sumOf(idle) > 0) phases.push({ name: IDLE_NAME, seconds: idle });
  return { steps: steps.map((step) => step.step), phases };
}

export interface Inside {
  name: string;
  seconds: number;
  parts: { name: string; seconds: number }[];
}

/** The spans inside the phases of a typical step, in seconds; phases without any are omitted. */
export function insideOf({ steps }: Breakdown): Inside[] {
  const found = new Map<string, { wall: number; parts: Map<string, number> }>();
  for (const phase of steps.flatMap((step) => step.phases)) {
    const known = found.get(phase.name) ?? { wall: 0, parts: new Map<string, number>() };
    known.wall += phase.wall_ns;
    for (const part of phase.inside) known.parts.set(part.name, (known.parts.get(part.name) ?? 0) + part.wall_ns);
    found.set(phase.name, known);
  }
  const average = (sum: number) => sum / 1e9 / Math.max(1, steps.length);
  return [...found]
    .filter(([, { parts }]) => parts.size > 0)
    .map(([name, { wall, parts }]) => ({
      name,
      seconds: average(wall),
      parts: [...parts]
        .map(([part, sum]) => ({ name: part, seconds: average(sum) }))
        .sort((one, other) => other.seconds - one.seconds),
    }))
    .sort((one, other) => other.seconds - one.seconds);
}

/** How many steps a chart of one step shows around it. */
const AROUND = 30;

/** The last step to load for a window of steps: including some after it, for context. */
export function lastShown(window: { first: number; last: number }): number {
  return window.first === window.last ? window.last + AROUND : window.last;
}

/** The steps that a range of an axis touches. */
export function wholeSteps(from: number, to: number): [first: number, last: number] {
  const first = Math.max(0, Math.ceil(from - 0.5));
  return [first, Math.max(first, Math.floor(to + 0.5))];
}

/** A sentence that compares a step with a typical one. */
export function comparisonText({ step, start_ns, end_ns, usual_ns, neighbors, phases }: StepComparison): string {
  const took = `Step ${step} took ${formatDuration(end_ns - start_ns)}`;
  if (neighbors === 0) return `${took}; no other step to compare it with.`;
  const more = end_ns - start_ns - usual_ns;
  if (Math.abs(more) < usual_ns * 0.05) return `${took}, as usual.`;
  const sign = Math.sign(more);
  const [most] = [...phases].sort(
    (one, other) => sign * (other.wall_ns - other.usual_ns) - sign * (one.wall_ns - one.usual_ns),
  );
  const cause =
    most === undefined
      ? ""
      : `: ${most.name} took ${formatDuration(most.wall_ns)}, usually ${formatDuration(most.usual_ns)}`;
  return `${took}, ${formatDuration(Math.abs(more))} ${more > 0 ? "longer" : "shorter"} than usual${cause}.`;
}

/** The value of a series at a step, or the latest before it; the last one without a step. */
export function valueAt({ x, y }: Readonly<Record<"x" | "y", readonly number[]>>, step?: number): number | undefined {
  return y[(step === undefined ? x.length : x.filter((one) => one <= step).length) - 1];
}
