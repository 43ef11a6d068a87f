import { describe, expect, test } from "vitest";
import { type Packable, packLines } from "./pack";

type Row = readonly [depth: number, start: number, end: number, parent?: number, isOpen?: boolean];

function lane(rows: readonly Row[], pixelNs = 1): Packable {
  return {
    lane: rows.map(() => 1),
    depth: rows.map(([depth]) => depth),
    start: rows.map(([, start]) => start),
    end: rows.map(([, , end]) => end),
    parent: rows.map((row) => row[3] ?? -1),
    isOpen: rows.map((row) => (row[4] === true ? 1 : 0)),
    pixelNs,
  };
}
const lines = (rows: readonly Row[], pixelNs?: number) => [...packLines(lane(rows, pixelNs))];

test("consecutive spans keep the line of their depth", () => {
  expect(
    lines([
      [0, 0, 100],
      [0, 100, 200],
      [1, 10, 50, 0],
      [1, 110, 150, 1],
    ]),
  ).toEqual([0, 0, 1, 1]);
});

test("twelve concurrent sessions are twelve stacks, each with its children right below it", () => {
  const sessions = Array.from({ length: 12 }, (_, number): Row => [0, number, 1000 + number]);
  const phases = sessions.map(([, start], number): Row => [1, start + 100, start + 500, number]);
  const found = lines([...sessions, ...phases]);
  expect(found.slice(0, 12)).toEqual(Array.from({ length: 12 }, (_, number) => 2 * number));
  expect(found.slice(12)).toEqual(found.slice(0, 12).map((line) => line + 1));
});

test("a free line is reused", () => {
  expect(
    lines([
      [0, 0, 100],
      [0, 50, 300],
      [0, 120, 200],
      [0, 350, 400],
    ]),
  ).toEqual([0, 1, 0, 0]);
});

test("an open span keeps its line", () => {
  expect(
    lines([
      [0, 0, 100, -1, true],
      [0, 150, 200],
    ]),
  ).toEqual([0, 1]);
});

test("a stack follows the parent, not the depth, which may be unknown", () => {
  expect(
    lines([
      [0, 0, 1000],
      [1, 1, 900],
      [1, 2, 950, 0],
      [1, 3, 800, 2],
      [1, 4, 850, 1],
    ]),
  ).toEqual([0, 3, 1, 2, 4]);
});

test("spans too short to be seen individually share a line", () => {
  const short = Array.from({ length: 50 }, (_, place): Row => [0, place * 10, place * 10 + 15]);
  expect(new Set(lines(short, 10))).toEqual(new Set([0]));
  expect(new Set(lines(short, 1)).size).toBe(2);
});

describe("any lane", () => {
  const random = (seed: number) => () => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return seed / 2 ** 32;
  };
  test.each([1, 2, 3, 4, 5])("no two concurrent spans are drawn on one line (%d)", (seed) => {
    const next = random(seed);
    const rows = Array.from({ length: 300 }, (): Row => {
      const start = next() * 10_000;
      return [next() < 0.5 ? 0 : 1, start, start + 5 + next() * 500];
    }).sort((one, other) => one[0] - other[0] || one[1] - other[1]);
    const found = lines(rows, 0.001);
    rows.forEach((one, place) => {
      rows.slice(place + 1).forEach((other, further) => {
        const overlap = Math.min(one[2], other[2]) - Math.max(one[1], other[1]);
        if (overlap > 0.01) expect(found[place]).not.toBe(found[place + 1 + further]);
      });
    });
  });
});
