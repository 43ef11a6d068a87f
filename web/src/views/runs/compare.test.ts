import { describe, expect, it } from "vitest";
import type { Hotspot } from "../../api";
import { type RunData, STEP_TIME, byStep, commonQuantities, differences, overlay } from "./compare";

const spot = (name: string, wall_ns: number): Hotspot => ({
  name,
  wall_ns,
  role: null,
  lane_id: null,
  count: 1,
  total_ns: wall_ns,
  average_ns: wall_ns,
  p50_ns: wall_ns,
  p95_ns: wall_ns,
  p99_ns: wall_ns,
  max_ns: wall_ns,
  errors: 0,
  open: 0,
});
const step = (number: number, seconds: number) => ({
  step: number,
  start_ns: 0,
  end_ns: seconds * 1e9,
  spans: 1,
  errors: 0,
});
const metric = (number: number, name: string, average: number) => ({ step: number, name, average, last: average });
const one: RunData = {
  steps: [step(0, 1), step(1, 2)],
  metrics: [metric(0, "reward", 0.5), metric(0, "gpu_power_watts", 1), metric(0, "only_here", 1)],
  hotspots: [spot("generate", 4e9), spot("gone", 2e9)],
};
const other: RunData = {
  steps: [step(1, 3)],
  metrics: [metric(1, "gpu_power_watts", 1), metric(1, "reward", 0.7)],
  hotspots: [spot("generate", 6e9), spot("new", 1e9)],
};

describe("comparing runs", () => {
  it("offers common metrics, rewards before hardware", () =>
    expect(commonQuantities(one, other)).toEqual([STEP_TIME, "reward", "gpu_power_watts"]));
  it("reads step times in seconds", () =>
    expect([...byStep(one, STEP_TIME)]).toEqual([
      [0, 1],
      [1, 2],
    ]));
  it("puts both on one axis with gaps", () => {
    expect(overlay(byStep(one, "reward"), byStep(other, "reward"))).toEqual({
      steps: [0, 1],
      one: [0.5, null],
      other: [null, 0.7],
    });
  });
  it("compares the time of a step, so that a longer run is not a slower one", () => {
    const found = differences(one, other);
    expect(found[0]).toMatchObject({ name: "generate", oneNs: 2e9, otherNs: 6e9, moreNs: 4e9, ratio: 3 });
    expect(found.find((row) => row.name === "new")).toMatchObject({ oneNs: null, moreNs: 1e9, ratio: null });
    expect(found.find((row) => row.name === "gone")).toMatchObject({ otherNs: null, moreNs: -1e9 });
  });
});
