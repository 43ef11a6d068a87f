import { expect, test } from "vitest";
import { PALETTE, colourOfName, colourOfStatus, colourOfStep, distinctColours, isWaiting, textOn } from "./colours";

test("a name has the same colour whenever it is asked for", () => {
  const names = Array.from({ length: 200 }, (_, index) => `span ${index}`);
  const first = names.map(colourOfName);
  expect([...names].reverse().map(colourOfName).reverse()).toEqual(first);
  expect(new Set(first).size).toBeGreaterThan(PALETTE.length / 2);
});

test("waiting is grey, whatever it waits for", () => {
  for (const name of ["wait", "wait_for_samples", "rollout.wait", "idle", "trainer/idle"]) {
    expect(isWaiting(name)).toBe(true);
    expect(colourOfName(name)).toBe(colourOfName("wait"));
  }
  expect(isWaiting("await_tool_result")).toBe(false);
});

test("names shown together have different colours as far as there are any", () => {
  const names = ["rollout", "rollout.sample", "rollout_step", "agent", "produce"];
  expect(new Set(distinctColours(names).values()).size).toBe(names.length);
  const many = Array.from({ length: 100 }, (_, index) => `n${index}`);
  expect(distinctColours(many).size).toBe(100);
});

test("neighbouring steps differ, also negative ones", () => {
  for (let step = -20; step < 20; step += 1) expect(colourOfStep(step)).not.toBe(colourOfStep(step + 1));
});

test("errors stand out, and a status that nobody knows is still drawn", () => {
  expect(colourOfStatus("error")).not.toBe(colourOfStatus("ok"));
  expect(colourOfStatus("what")).toMatch(/^#/);
});

test("text is dark on light colours and light on dark ones", () => {
  expect(textOn("#ffffff")).toBe("#101418");
  expect(textOn("#000000")).toBe("#ffffff");
  expect(textOn("#0072b2")).toBe("#ffffff");
});
