// The positions of session phases on an axis; the components draw them.
import type { Session } from "../../api";
import { PENDING } from "../../sessionStatus";

export interface PhaseInterval {
  name: string;
  start: number;
  /** Null while it runs. */
  end: number | null;
  outcome: string;
  spanId: string | null;
}

/** The phases of a session by their start; `execution` first if they begin together, because it encloses the others. */
export function phasesOf(session: Session): PhaseInterval[] {
  const found = Object.entries(session.phases ?? {}).flatMap(([name, intervals]) =>
    intervals.map((interval) => ({
      name,
      start: Number(interval["start_ts"]),
      end: typeof interval["end_ts"] === "number" ? interval["end_ts"] : null,
      outcome: typeof interval["outcome"] === "string" ? interval["outcome"] : "ok",
      spanId: typeof interval["span_id"] === "string" ? interval["span_id"] : null,
    })),
  );
  return found
    .filter((phase) => Number.isFinite(phase.start))
    .sort((one, other) => one.start - other.start || (other.end ?? Infinity) - (one.end ?? Infinity));
}

/** When a session began and ended, in seconds; an open one ends now. */
export function extentOf(session: Session, now: number): [number, number] {
  const phases = phasesOf(session);
  const start = session.submit_ts ?? phases[0]?.start ?? now;
  if (session.status === PENDING) return [start, Math.max(start, now)];
  const ends = phases.map((phase) => phase.end ?? start);
  return [start, Math.max(start, session.wait_return_ts ?? start, session.finalized_ts ?? start, ...ends)];
}

/** `submit`: every session begins at 0, to compare lengths. `clock`: in real time. */
export type GanttAxis = "submit" | "clock";

/** The axis that a set of sessions needs, in seconds. */
export function axisOf(sessions: readonly Session[], axis: GanttAxis, now: number): [number, number] {
  const extents = sessions.map((session) => extentOf(session, now));
  if (extents.length === 0) return [0, 1];
  if (axis === "submit") return [0, Math.max(1e-6, ...extents.map(([start, end]) => end - start))];
  return [Math.min(...extents.map(([start]) => start)), Math.max(...extents.map(([, end]) => end))];
}

/** Round positions of ticks between two numbers: at most `wanted`. */
export function ticks(from: number, to: number, wanted: number): number[] {
  const span = to - from;
  if (!(span > 0)) return [from];
  const raw = span / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const width = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw)!;
  const found: number[] = [];
  for (let index = Math.ceil(from / width); index * width <= to; index += 1) found.push(index * width);
  return found;
}
