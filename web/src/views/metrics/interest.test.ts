import { expect, it } from "vitest";
import { byInterest } from "./interest";

it("follows the order of the server, and of names within a place", () => {
  const metrics = [
    { name: "gpu_power_watts", interest: 10 },
    { name: "reward_10", interest: 0 },
    { name: "reward_9", interest: 0 },
    { name: "policy_kl", interest: 4 },
  ];
  expect(byInterest(metrics)).toEqual(["reward_9", "reward_10", "policy_kl", "gpu_power_watts"]);
});
