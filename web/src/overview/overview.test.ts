import { describe, expect, test } from "vitest";
import type { Breakdown, Metric, Step } from "../api";
import { type Severity, severityClass, toneOf } from "../tones";
import { metricOf, otherMetrics } from "./chosenMetrics";
import { barColor, barsOf, insideOf, stepSeconds, valueAt } from "./stepTimes";

const phase = (name: string, seconds: number, inside: Record<string, number> = {}) => ({
  name,
  wall_ns: seconds * 1e9,
  inside: Object.entries(inside).map(([part, wall]) => ({ name: part, wall_ns: wall * 1e9 })),
});
const broken = (...steps: ReturnType<typeof phase>[][]): Breakdown => ({
  role: "trainer",
  roles: ["trainer"],
  steps: steps.map((phases, step) => ({ step, start_ns: 0, end_ns: 10e9, lanes: 1, phases, idle_ns: step * 1e9 })),
});
const step = (number: number, start: number, end: number | null): Step => ({
  step: number,
  start_ns: start * 1e9,
  end_ns: end === null ? null : end * 1e9,
  spans: 1,
  errors: 0,
});

test("bars are the server's phases, the largest first, and the idle time on top", () => {
  expect(barsOf(broken([phase("update", 2), phase("rollout", 7)], [phase("update", 1)]))).toEqual({
    steps: [0, 1],
    phases: [
      { name: "rollout", seconds: [7, 0] },
      { name: "update", seconds: [2, 1] },
      { name: "idle", seconds: [0, 1] },
    ],
  });
});

test("idle time and recorded waiting have different colors", () => {
  expect(barColor("idle")).not.toBe(barColor("wait_for_samples"));
});

test("many phases are shown as the largest and the rest", () => {
  const many = Array.from({ length: 20 }, (_, index) => phase(`phase ${index}`, index + 1));
  const { phases } = barsOf(broken(many), 5);
  expect(phases.map((one) => one.name)).toEqual(["phase 19", "phase 18", "phase 17", "phase 16", "16 others"]);
  expect(phases.reduce((sum, one) => sum + one.seconds[0]!, 0)).toBe(210);
});

test("spans inside a phase are shown for a typical step and never stacked", () => {
  const found = insideOf(
    broken([phase("rollout", 8, { generate: 4, tool: 5 })], [phase("rollout", 6, { generate: 4 })]),
  );
  expect(found).toEqual([
    {
      name: "rollout",
      seconds: 7,
      parts: [
        { name: "generate", seconds: 4 },
        { name: "tool", seconds: 2.5 },
      ],
    },
  ]);
});

test("a step's time is the server's, and a running step has none", () => {
  expect(stepSeconds([step(3, 0, 2), step(4, 2, 5), step(5, 5, null)])).toEqual([
    { step: 3, seconds: 2 },
    { step: 4, seconds: 3 },
  ]);
});

test("severities are painted as they are named", () => {
  expect([undefined, null, "info", "warning", "critical"].map((one) => toneOf(one as Severity | null))).toEqual([
    ...["good", "good", "plain", "warning", "bad"],
  ]);
  expect([null, "info", "warning", "critical"].map((one) => severityClass(one as Severity | null))).toEqual([
    ...["", "", "warning", "bad"],
  ]);
});

describe("metrics of the overview", () => {
  const metric = (name: string, interest: number, quantity: Metric["quantity"] = null): Metric => ({
    name,
    interest,
    quantity,
    is_hardware: interest === 10,
    kind: "gauge",
    documentation: "",
    series: 1,
    labels: [],
  });
  test("the server says which metric shows a quantity", () => {
    const listed = [metric("val/reward_mean", 0), metric("critic/rewards/mean", 0, "reward"), metric("lr", 8)];
    expect(metricOf(listed, "reward")).toBe("critic/rewards/mean");
    expect(metricOf(listed, "throughput")).toBeUndefined();
  });
  test("other metrics fill the remaining room", () => {
    const listed = [
      metric("zeta", 9),
      metric("kl", 4),
      metric("loss", 3),
      metric("reward", 0, "reward"),
      metric("gpu_memory_total_bytes", 10),
    ];
    expect(otherMetrics(listed, ["reward"], 2)).toEqual(["loss", "kl"]);
    expect(otherMetrics(listed, ["reward"], 9)).toEqual(["loss", "kl", "zeta"]);
  });
});

test("a value is that of the chosen step, or else the last one", () => {
  const points = { x: [3, 4, 6], y: [0.1, 0.2, 0.3] };
  expect([undefined, 6, 5, 4, 2].map((step) => valueAt(points, step))).toEqual([0.3, 0.3, 0.2, 0.2, undefined]);
});
