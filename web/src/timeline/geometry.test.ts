import { describe, expect, test } from "vitest";
import {
  type Window,
  SHORTEST_NS,
  around,
  clamp,
  covers,
  panBy,
  tickDistance,
  ticks,
  timeToX,
  width,
  withMargins,
  xToTime,
  zoomAt,
} from "./geometry";

const WHOLE: Window = { start: 0, end: 600e9 };

test("pixels and times translate into each other", () => {
  const window = { start: 5e9, end: 7e9 };
  for (const x of [0, 1, 333.25, 1000]) expect(timeToX(xToTime(x, window, 1000), window, 1000)).toBeCloseTo(x, 6);
});

describe("zooming keeps the time under the pointer in place", () => {
  test.each([[0.5], [2], [0.01], [7]])("by %d", (factor) => {
    const window = { start: 100e9, end: 140e9 };
    const time = 112.5e9;
    const zoomed = zoomAt(window, time, factor, WHOLE);
    expect(timeToX(time, zoomed, 1000)).toBeCloseTo(timeToX(time, window, 1000), 4);
    expect(width(zoomed)).toBeCloseTo(width(window) * factor, 0);
  });
});

test("zooming is limited", () => {
  let window: Window = { start: 0, end: 10e9 };
  for (let times = 0; times < 100; times += 1) window = zoomAt(window, 5e9, 0.5, WHOLE);
  expect(width(window)).toBeGreaterThanOrEqual(SHORTEST_NS);
  for (let times = 0; times < 100; times += 1) window = zoomAt(window, 5e9, 2, WHOLE);
  expect(width(window)).toBeLessThanOrEqual(width(WHOLE) * 3);
});

test("panning cannot leave the run", () => {
  for (const distance of [-1e15, -700e9, 0, 700e9, 1e15]) {
    const moved = clamp(panBy({ start: 0, end: 20e9 }, distance), WHOLE);
    expect(width(moved)).toBe(20e9);
    expect(moved.start < WHOLE.end && moved.end > WHOLE.start).toBe(true);
  }
});

test("a window around a point in time has a size", () => {
  expect(width(around(5, 5))).toBeGreaterThan(0);
  expect(covers(around(10, 20), { start: 10, end: 20 })).toBe(true);
});

test("margins surround the window", () => {
  expect(withMargins({ start: 100, end: 200 }, 0.5)).toEqual({ start: 50, end: 250 });
});

test.each([
  [1e3, 10],
  [1e6, 1e4],
  [1e9, 1e7],
  [60e9, 1e9],
  [600e9, 6e10],
  [86_400e9, 3600e9],
])("ticks in %d ns are at round distances and neither too many nor too few", (size, least) => {
  const distance = tickDistance({ start: 0, end: size }, 1200);
  expect(distance).toBeGreaterThanOrEqual(least);
  const { times } = ticks({ start: 3, end: 3 + size }, 1200);
  expect(times.length).toBeGreaterThan(2);
  expect(times.length).toBeLessThan(13);
  for (const time of times) expect(time % distance).toBe(0);
});
