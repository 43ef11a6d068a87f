import { describe, expect, it } from "vitest";
import { type RunData, STEP_TIME, byStep, commonQuantities, firstShown, overlay } from "./compare";

const step = (number: number, seconds: number) => ({
  step: number,
  start_ns: 0,
  end_ns: seconds * 1e9,
  spans: 1,
  errors: 0,
});
const metric = (number: number, name: string, average: number) => ({ step: number, name, average, last: average });
const listed = [
  { name: "gpu_power_watts", kind: "gauge", interest: 10, is_hardware: true },
  { name: "only_here", kind: "gauge", interest: 9, is_hardware: false },
  { name: "reward", kind: "gauge", interest: 0, is_hardware: false },
];
const one: RunData = {
  listed,
  steps: [step(0, 1), step(1, 2)],
  metrics: [metric(0, "reward", 0.5), metric(0, "gpu_power_watts", 1), metric(0, "only_here", 1)],
};
const other: RunData = {
  listed,
  steps: [step(1, 3)],
  metrics: [metric(1, "gpu_power_watts", 1), metric(1, "reward", 0.7)],
};

describe("comparing runs", () => {
  it("offers common metrics, rewards before hardware", () =>
    expect(commonQuantities(one, other)).toEqual([STEP_TIME, "reward", "gpu_power_watts"]));
  it("first shows what the server does not call hardware", () =>
    expect(firstShown([STEP_TIME, "process_reward_mean", "gpu_power_watts"], one)).toEqual([
      STEP_TIME,
      "process_reward_mean",
    ]));
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
});
