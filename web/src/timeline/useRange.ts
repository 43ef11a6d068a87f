import { useEffect, useRef } from "react";
import { type SharedWindow, type TimeWindow, useWindow, windowText } from "../window";
import type { Window } from "./geometry";

/** A drag counts once the pointer has rested this long. */
export const RANGE_REST_MS = 250;

/** The selected range is the window that all views share: a drag sets it once the pointer rests. */
export function useRange(
  run: string,
  origin: number,
  range: Window | null,
  setRange: (range: Window | null) => void,
): SharedWindow {
  const shared = useWindow(run);
  const { bounds, isPending, setWindow } = shared;
  const written = useRef("");
  const own = range === null ? "" : windowText(timeWindow(range, origin));
  useEffect(() => {
    if (own === written.current) return undefined;
    const timer = window.setTimeout(() => {
      written.current = own;
      setWindow(range === null ? null : timeWindow(range, origin));
    }, RANGE_REST_MS);
    return () => window.clearTimeout(timer);
  }, [own]);
  const key = shared.window === null ? "" : windowText(shared.window);
  useEffect(() => {
    // Set elsewhere: by a link, by the back button, or by the steps of the overview.
    if (key === written.current || isPending) return;
    const next = bounds === null ? null : { start: bounds.start_ns - origin, end: bounds.end_ns - origin };
    written.current = next === null ? "" : windowText(timeWindow(next, origin));
    setRange(next);
  }, [key, isPending]);
  return shared;
}

function timeWindow(range: Window, origin: number): TimeWindow {
  return { kind: "time", from: (origin + range.start) / 1e9, to: (origin + range.end) / 1e9 };
}
