import { expect, it } from "vitest";
import { byInterest, isHardware } from "./interest";

it("puts rewards first and hardware last", () => {
  expect(byInterest(["gpu_power_watts", "queue_depth", "policy_kl", "throughput", "reward_mean"])).toEqual([
    "reward_mean",
    "throughput",
    "policy_kl",
    "queue_depth",
    "gpu_power_watts",
  ]);
});

it("does not mistake a training metric for hardware", () => {
  expect(isHardware("tokens_per_second_per_gpu")).toBe(false);
  expect(isHardware("node_up")).toBe(true);
});
