// Geometry: time windows, pixels, ticks. Pure functions; times are nanoseconds from the run's origin, which
// keeps them far below 2^53 and so exact.

/** The visible time window. */
export interface Window {
  start: number;
  end: number;
}

/** The limits of zooming in (1 µs across the screen) and out (three times the run). */
export const SHORTEST_NS = 1e3;
const LONGEST_FACTOR = 3;

export function width(window: Window): number {
  return window.end - window.start;
}

export function timeToX(time: number, window: Window, pixels: number): number {
  return ((time - window.start) / width(window)) * pixels;
}

export function xToTime(x: number, window: Window, pixels: number): number {
  return window.start + (x / pixels) * width(window);
}

/** Zooms so that the time under the pointer stays under it; a factor below 1 shows less time. */
export function zoomAt(window: Window, time: number, factor: number, whole: Window): Window {
  const longest = Math.max(width(whole), 1e9) * LONGEST_FACTOR;
  const next = Math.min(longest, Math.max(SHORTEST_NS, width(window) * factor));
  const share = (time - window.start) / width(window);
  const start = time - share * next;
  return { start, end: start + next };
}

export function panBy(window: Window, ns: number): Window {
  return { start: window.start + ns, end: window.end + ns };
}

/** Moves a window so that at least a part of the run stays in view. */
export function clamp(window: Window, whole: Window): Window {
  const size = width(window);
  const margin = size * 0.8;
  const earliest = whole.start - margin;
  const latest = whole.end + margin - size;
  const start = Math.max(Math.min(window.start, Math.max(latest, earliest)), earliest);
  return { start, end: start + size };
}

/** Returns a window around something, with room on both sides. */
export function around(start: number, end: number, share = 0.15): Window {
  const size = Math.max(end - start, SHORTEST_NS);
  const margin = size * share;
  return { start: start - margin, end: start + size + margin };
}

export function overlaps(one: Window, other: Window): boolean {
  return one.start < other.end && other.start < one.end;
}

export function covers(outer: Window, inner: Window): boolean {
  return outer.start <= inner.start && inner.end <= outer.end;
}

/** A window with margins, so that a small move needs no new request. */
export function withMargins(window: Window, share: number): Window {
  const margin = width(window) * share;
  return { start: Math.floor(window.start - margin), end: Math.ceil(window.end + margin) };
}

const STEPS = [1, 2, 5];

/** Round distances between ticks: 1, 2, 5 times a power of ten below a minute, then clock units. */
export function tickDistance(window: Window, pixels: number, apart = 110): number {
  const least = (width(window) * apart) / Math.max(1, pixels);
  for (let power = 1; power < 6e10; power *= 10) {
    for (const step of STEPS) if (step * power >= least && step * power < 6e10) return step * power;
  }
  const minute = 6e10;
  for (const minutes of [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440]) {
    if (minutes * minute >= least) return minutes * minute;
  }
  return Math.ceil(least / (1440 * minute)) * 1440 * minute;
}

/** The times of the ticks in a window. */
export function ticks(window: Window, pixels: number): { distance: number; times: number[] } {
  const distance = tickDistance(window, pixels);
  const times: number[] = [];
  for (let time = Math.ceil(window.start / distance) * distance; time <= window.end; time += distance) times.push(time);
  return { distance, times };
}
