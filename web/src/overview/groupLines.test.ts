import { expect, test } from "vitest";
import type { LogLine } from "../api";
import { foldLines, groupLines } from "./groupLines";

const line = (time_ns: number, process_id: string, message: string, level = 40): LogLine => ({
  ...{ time_ns, level, logger: null, message, span_id: null, step: null, session_id: null, attributes: {} },
  ...{ process_id, role: "rollout", rank: 0, lane: null, lane_id: 0 },
});

test("a burst of one message is one line with the number of processes that logged it", () => {
  const found = groupLines([
    line(3, "a", "no answer in 10 s"),
    line(2, "b", "no answer in 12 s"),
    line(1, "a", "no answer in 9 s"),
    line(4, "a", "slow disk", 30),
  ]);
  expect(found.map(({ line: newest, count, places }) => [newest.time_ns, count, places])).toEqual([
    [3, 3, 2],
    [4, 1, 1],
  ]);
});

test("consecutive lines that differ only in numbers are folded, and the order stays", () => {
  const found = foldLines([
    line(5, "a", "retry 3"),
    line(4, "b", "retry 2"),
    line(3, "a", "slow disk", 30),
    line(2, "a", "retry 1"),
  ]);
  expect(found.map(({ line: newest, count, places }) => [newest.time_ns, count, places])).toEqual([
    [5, 2, 2],
    [3, 1, 1],
    [2, 1, 1],
  ]);
});
