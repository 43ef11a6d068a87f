// The part of the run that all views show: some steps or a time range. It is kept in the address as `window=37-40`
// (steps) or `window=1794807048.166-1794807103.489` (seconds since 1970), and is kept when the view changes.
import { useCallback, useMemo } from "react";
import type { Step } from "./api";
import { formatCount, formatDuration, formatMoment } from "./units";
import { type UrlMode, useUrlState } from "./url";
import { useAnswer } from "./useQuery";

export type StepsWindow = { kind: "steps"; first: number; last: number };
export type TimeWindow = { kind: "time"; from: number; to: number };
export type RunWindow = StepsWindow | TimeWindow;

/** Parses a window from the address; null for none. Seconds have a decimal point, steps have none. */
export function parseWindow(text: string): RunWindow | null {
  const steps = /^(\d+)(?:-(\d+))?$/.exec(text);
  if (steps !== null) {
    const [first, last] = [Number(steps[1]), Number(steps[2] ?? steps[1])];
    return first <= last ? { kind: "steps", first, last } : null;
  }
  const time = /^(\d+\.\d+)-(\d+\.\d+)$/.exec(text);
  const [from, to] = [Number(time?.[1] ?? 0), Number(time?.[2] ?? 0)];
  return from < to ? { kind: "time", from, to } : null;
}

/** A window as in the address. */
export function windowText(window: RunWindow | null): string {
  if (window === null) return "";
  if (window.kind === "steps") return `${window.first}-${window.last}`;
  // Six digits: a selection on the timeline may be a few microseconds long.
  return `${window.from.toFixed(6)}-${window.to.toFixed(6)}`;
}

/** A description of a window. */
export function windowTitle(window: RunWindow): string {
  if (window.kind === "time")
    return `${formatMoment(window.from * 1e9)}, ${formatDuration((window.to - window.from) * 1e9)}`;
  const { first, last } = window;
  return first === last ? `step ${formatCount(first)}` : `steps ${formatCount(first)} – ${formatCount(last)}`;
}

export interface Bounds {
  start_ns: number;
  end_ns: number;
}

const MOST_STEPS = 1000;

/** The time of a window's steps; null while it is unknown. */
export function boundsOf(window: RunWindow | null, steps: readonly Step[], nowNs: number): Bounds | null {
  if (window === null) return null;
  if (window.kind === "time") return { start_ns: window.from * 1e9, end_ns: window.to * 1e9 };
  const inside = steps.filter((one) => one.step >= window.first && one.step <= window.last);
  if (inside.length === 0) return null;
  return {
    start_ns: Math.min(...inside.map((one) => one.start_ns)),
    end_ns: Math.max(...inside.map((one) => one.end_ns ?? nowNs)),
  };
}

/** The steps that overlap a window; null if none are known. */
export function stepsOf(window: RunWindow | null, steps: readonly Step[]): StepsWindow | null {
  if (window === null || window.kind === "steps") return window;
  const inside = steps.filter(
    (one) => one.start_ns < window.to * 1e9 && (one.end_ns === null || one.end_ns > window.from * 1e9),
  );
  if (inside.length === 0) return null;
  const numbers = inside.map((one) => one.step);
  return { kind: "steps", first: Math.min(...numbers), last: Math.max(...numbers) };
}

export interface SharedWindow {
  window: RunWindow | null;
  /** Its time; null without a window, and while the time of its steps is unknown. */
  bounds: Bounds | null;
  /** Its steps; null without a window, or if the run has no steps in it. */
  steps: StepsWindow | null;
  /** True while a window is set whose time is still unknown. */
  isPending: boolean;
  setWindow: (window: RunWindow | null, mode?: UrlMode) => void;
}

/** The window that all views share. */
export function useWindow(run: string): SharedWindow {
  const [text, setText] = useUrlState("window", "");
  const window = useMemo(() => parseWindow(text), [text]);
  const last = window?.kind === "steps" ? window.last : undefined;
  const { data, error } = useAnswer(
    "steps",
    { run, limit: MOST_STEPS, last },
    { enabled: window !== null, everyMs: 5000, keep: false },
  );
  const setWindow = useCallback(
    (next: RunWindow | null, mode: UrlMode = "push") => setText(windowText(next), mode),
    [setText],
  );
  const bounds = useMemo(() => boundsOf(window, data ?? [], Date.now() * 1e6), [window, data]);
  const steps = useMemo(() => stepsOf(window, data ?? []), [window, data]);
  const isPending = window !== null && bounds === null && data === undefined && error === undefined;
  return { window, bounds, steps, isPending, setWindow };
}
