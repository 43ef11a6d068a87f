import { describe, expect, test } from "vitest";
import type { Lane, Step, StepTime } from "../api";
import { chooseMetric, otherMetrics } from "./chosenMetrics";
import { idleByRole, median, phasesByStep, rolesOf, slowdown, stepSeconds, stragglers } from "./stepPhases";

function lane(lane_id: number, role: string, rank: number): Lane {
  return {
    lane_id,
    lane: `l${lane_id}`,
    process_id: `${role}-${rank}`,
    role,
    rank,
    host: "node",
    spans: 1,
    open_spans: 0,
    first_ns: 0,
    last_ns: 1,
  };
}
const LANES = [lane(1, "rollout", 0), lane(2, "rollout", 1), lane(3, "rollout", 2), lane(4, "trainer", 0)];
const time = (step: number, lane_id: number, name: string, seconds: number, count = 5): StepTime => ({
  step,
  lane_id,
  name,
  wall_ns: seconds * 1e9,
  count,
});
const steps = (...starts: number[]): Step[] =>
  starts.map((start, place) => ({ step: place, start_ns: start * 1e9, end_ns: start * 1e9 + 1, spans: 1, errors: 0 }));

test("the role that leads the steps comes first", () => {
  expect(rolesOf(LANES)).toEqual(["trainer", "rollout"]);
});

test("a step's time is that of an average lane of the role", () => {
  const found = phasesByStep(
    [time(1, 1, "generate", 2), time(1, 2, "generate", 4), time(1, 4, "update", 9), time(2, 1, "reward", 1)],
    LANES,
    "rollout",
  );
  expect(found.steps).toEqual([1, 2]);
  expect(found.phases).toEqual([
    { name: "generate", seconds: [3, 0], total: 3 },
    { name: "reward", seconds: [0, 1], total: 1 },
  ]);
});

test("many phases are shown as the largest and the rest", () => {
  const times = Array.from({ length: 20 }, (_, index) => time(1, 4, `phase ${index}`, index + 1));
  const { phases } = phasesByStep(times, LANES, "trainer", 5);
  expect(phases).toHaveLength(5);
  expect(phases[4]!.name).toBe("16 others");
  expect(phases.reduce((sum, phase) => sum + phase.total, 0)).toBe(210);
});

describe("stragglers", () => {
  const even = [time(1, 1, "generate", 1), time(1, 2, "generate", 1.1), time(1, 3, "generate", 0.9)];
  test("are named with how much slower they are than their peers", () => {
    const found = stragglers([...even.slice(1), time(1, 1, "generate", 3)], LANES);
    expect(found).toHaveLength(1);
    expect(found[0]).toMatchObject({ role: "rollout", rank: 0, name: "generate" });
    expect(found[0]!.ratio).toBeCloseTo(3 / 1.1);
  });
  test("are not found where all are alike, where there are no peers, or where it hardly ever happens", () => {
    expect(stragglers(even, LANES)).toEqual([]);
    expect(stragglers([time(1, 4, "update", 100)], LANES)).toEqual([]);
    expect(stragglers([...even.slice(1), time(1, 1, "generate", 3, 1)], LANES)).toEqual([]);
    expect(stragglers([], [])).toEqual([]);
  });
});

test("waiting counts as idle, and the idlest role comes first", () => {
  const times = [
    time(0, 1, "generate", 9),
    time(0, 2, "generate", 7),
    time(0, 4, "wait_for_samples", 8),
    time(0, 4, "update", 2),
    time(1, 4, "update", 50),
  ];
  const found = idleByRole(times, LANES, steps(0, 10));
  expect(found.map((one) => [one.role, Number(one.share.toFixed(6))])).toEqual([
    ["trainer", 0.8],
    ["rollout", 0.2],
  ]);
  expect(found[1]!.worst.lane.lane_id).toBe(2);
  expect(idleByRole(times, LANES, [])).toEqual([]);
});

test("a step lasts until the next begins", () => {
  expect(stepSeconds(steps(0, 2, 5)).map((one) => one.seconds)).toEqual([2, 3]);
  expect(stepSeconds([])).toEqual([]);
});

test("slower steps are noticed once there are enough of them", () => {
  expect(slowdown([1, 1, 1])).toBeNull();
  expect(slowdown([...Array<number>(15).fill(1), ...Array<number>(5).fill(1.5)])).toBeCloseTo(0.5);
  expect(median([])).toBeNaN();
  expect(median([3, 1, 2, 10])).toBe(2.5);
});

describe("metrics are chosen by the names that frameworks use", () => {
  test.each([
    ["reward", ["reward_std", "reward_by_task", "reward_mean"], "reward_mean"],
    ["reward", ["critic_rewards_mean", "loss"], "critic_rewards_mean"],
    ["reward", ["reward_max"], "reward_max"],
    ["reward", ["loss"], undefined],
    ["throughput", ["throughput_tokens_per_s", "tool_rate"], "throughput_tokens_per_s"],
    ["throughput", ["perf_throughput"], "perf_throughput"],
    ["staleness", ["staleness_max", "staleness_mean"], "staleness_mean"],
    ["gpu", ["ray_node_gpus_utilization", "gpu_memory_used_bytes"], "ray_node_gpus_utilization"],
    ["gpu", ["cpu_utilization_ratio"], undefined],
  ] as const)("%s from %j", (wish, names, expected) => {
    expect(chooseMetric(names, wish)).toBe(expected);
  });
  test("others fill the room that is left", () => {
    expect(otherMetrics(["zeta", "kl", "loss", "reward"], ["reward"], 2)).toEqual(["loss", "kl"]);
  });
});
