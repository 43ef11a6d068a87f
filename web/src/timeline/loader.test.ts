import { expect, test } from "vitest";
import type { Timeline } from "../api";
import type { Window } from "./geometry";
import { Loader } from "./loader";

interface Asked {
  window: Window;
  pixels: number;
  lanes: number[] | null;
  signal: AbortSignal;
  answer: () => Promise<void>;
  fail: () => Promise<void>;
}

function empty(window: Window): Timeline {
  return {
    start_ns: window.start,
    end_ns: window.end,
    pixel_ns: 1,
    names: [],
    lane_id: [],
    depth: [],
    name: [],
    block_start_ns: [],
    block_end_ns: [],
    count: [],
    busy_ns: [],
    errors: [],
    open: [],
    span_id: [],
    parent: [],
  };
}

function made(reply: (window: Window) => Timeline = empty): {
  loader: Loader;
  asked: Asked[];
  errors: (string | null)[];
} {
  const asked: Asked[] = [];
  const errors: (string | null)[] = [];
  const loader = new Loader({
    margin: 0.5,
    everyMs: 100,
    onBlocks: () => undefined,
    onError: (message) => errors.push(message),
    ask: (window, pixels, lanes, signal) =>
      new Promise((resolve, reject) => {
        const settled = () => new Promise<void>((done) => setTimeout(done, 0));
        asked.push({
          window,
          pixels,
          lanes: lanes === null ? null : [...lanes],
          signal,
          answer: () => (resolve(reply(window)), settled()),
          fail: () => (reject(new Error("the server is away")), settled()),
        });
      }),
  });
  return { loader, asked, errors };
}

const VIEW: Window = { start: 1000, end: 2000 };
/** Long after everything, so that no pause interferes. */
const later = () => performance.now() + 1e6;

test("the visible window is requested once, with margins", async () => {
  const { loader, asked } = made();
  loader.want(VIEW, 100, 1, false, later());
  loader.want(VIEW, 100, 1, false, later() * 2);
  expect(asked).toHaveLength(1);
  expect(asked[0]).toMatchObject({ window: { start: 500, end: 2500 }, pixels: 200 });
  await asked[0]!.answer();
  loader.want(VIEW, 100, 1, false, later() * 3);
  loader.want({ start: 1200, end: 2200 }, 100, 1, false, later() * 4);
  expect(asked).toHaveLength(1);
});

test.each([
  ["moving out of what is here", { start: 3000, end: 4000 }],
  ["zooming in", { start: 1400, end: 1500 }],
  ["zooming out", { start: 0, end: 20_000 }],
])("%s asks again", async (_what, window) => {
  const { loader, asked } = made();
  loader.want(VIEW, 100, 1, false, later());
  await asked[0]!.answer();
  loader.want(window, 100, 1, false, later() * 2);
  expect(asked).toHaveLength(2);
  expect(loader.blocks).not.toBeNull();
});

test("new data is requested only if visible, and not more often than the interval", async () => {
  const { loader, asked } = made();
  const now = later();
  loader.want(VIEW, 100, 1, true, now);
  await asked[0]!.answer();
  loader.want(VIEW, 100, 2, false, now + 1000);
  expect(asked).toHaveLength(1);
  loader.want(VIEW, 100, 2, true, now + 50);
  expect(asked).toHaveLength(1);
  loader.want(VIEW, 100, 2, true, now + 1000);
  expect(asked).toHaveLength(2);
});

test("an outdated request is not waited for", () => {
  const { loader, asked } = made();
  const now = later();
  loader.want(VIEW, 100, 1, false, now);
  loader.want({ start: 9000, end: 9900 }, 100, 1, false, now + 200);
  expect(asked).toHaveLength(2);
  expect(asked[0]!.signal.aborted).toBe(true);
});

test("a failure is reported, keeps the old blocks, and is retried", async () => {
  const { loader, asked, errors } = made();
  loader.want(VIEW, 100, 1, false, later());
  await asked[0]!.answer();
  const picture = loader.blocks;
  loader.want({ start: 5000, end: 6000 }, 100, 1, false, later() * 2);
  await asked[1]!.fail();
  expect(errors.at(-1)).toBe("the server is away");
  expect(loader.blocks).toBe(picture);
  loader.want({ start: 5000, end: 6000 }, 100, 1, false, later() * 3);
  expect(asked).toHaveLength(3);
});

test("while a run is followed only its newest time is requested, until a full request is due", async () => {
  const second = 1e9;
  const { loader, asked } = made((window) => ({
    ...empty(window),
    names: ["a"],
    lane_id: [1],
    depth: [0],
    name: [0],
    block_start_ns: [0],
    block_end_ns: [100 * second],
    count: [1],
    busy_ns: [1],
    errors: [0],
    open: [false],
    span_id: ["x"],
  }));
  const now = later();
  loader.want({ start: 60 * second, end: 100 * second }, 400, 1, true, now);
  await asked[0]!.answer();
  expect(asked[0]!.window).toEqual({ start: 40 * second, end: 120 * second });
  loader.want({ start: 61 * second, end: 101 * second }, 400, 2, true, now + 1000);
  expect(asked[1]!.window).toEqual({ start: 97 * second, end: 121 * second });
  await asked[1]!.answer();
  expect(loader.blocks!.window).toEqual({ start: 41 * second, end: 121 * second });
  loader.want({ start: 90 * second, end: 130 * second }, 400, 3, true, now + 60_000);
  expect(asked[2]!.window.start).toBe(70 * second);
});

test("invalidated blocks are requested again, and stay visible until then", async () => {
  const { loader, asked } = made();
  loader.want(VIEW, 100, 1, false, 0);
  await asked[0]!.answer();
  loader.forget();
  expect(loader.blocks).not.toBeNull();
  loader.want(VIEW, 100, 1, false, 1);
  expect(asked).toHaveLength(2);
  expect(asked[1]!.window).toEqual(asked[0]!.window);
});

const near = (...lanes: number[]) => ({ inView: lanes, near: () => [...lanes, 8, 9] });

test("of many lanes those near the viewport are requested, and others when it reaches them", async () => {
  const { loader, asked } = made();
  loader.want(VIEW, 100, 1, false, later(), near(1, 2));
  expect(asked[0]!.lanes).toEqual([1, 2, 8, 9]);
  await asked[0]!.answer();
  loader.want(VIEW, 100, 1, false, later() * 2, near(2, 8));
  expect(asked).toHaveLength(1);
  loader.want(VIEW, 100, 1, false, later() * 3, near(2, 7));
  expect(asked[1]!.lanes).toEqual([2, 7, 8, 9]);
  await asked[1]!.answer();
  expect(loader.blocks!.onlyLanes).toEqual(new Set([2, 7, 8, 9]));
});

test("new data of many lanes is requested for the loaded lanes", async () => {
  const { loader, asked } = made((window) => ({
    ...empty(window),
    names: ["state"],
    lane_id: [1],
    depth: [0],
    name: [0],
    block_start_ns: [0],
    block_end_ns: [5e9],
    count: [1],
    busy_ns: [5e9],
    errors: [0],
    open: [false],
    span_id: ["1"],
    parent: [-1],
  }));
  const window = { start: 0, end: 10e9 };
  const now = performance.now() + 1000;
  loader.want(window, 100, 1, true, now, near(1));
  await asked[0]!.answer();
  loader.want(window, 100, 2, true, now + 5000, near(1));
  expect(asked[1]!.window.start).toBe(2e9);
  expect(asked[1]!.lanes).toEqual([1, 8, 9]);
  await asked[1]!.answer();
  expect(loader.blocks!.onlyLanes).toEqual(new Set([1, 8, 9]));
});
