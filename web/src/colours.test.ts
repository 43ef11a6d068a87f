import { describe, expect, test } from "vitest";
import {
  PALETTE,
  SURFACES,
  colourOfName,
  colourOfStatus,
  colourOfStep,
  isWaiting,
  lineColour,
  textOn,
} from "./colours";

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

test.each([
  ["sync_weights", "save_checkpoint"],
  ["train_step", "update_actor"],
  ["forward", "compute_log_prob"],
  ["generate", "toolcall"],
  ["compute_log_prob", "compute_advantage"],
])("%s and %s, which follow each other, differ", (one, other) => {
  expect(colourOfName(one)).not.toBe(colourOfName(other));
});

test("neighbouring steps differ, also negative ones", () => {
  for (let step = -20; step < 20; step += 1) expect(colourOfStep(step)).not.toBe(colourOfStep(step + 1));
});

test("errors stand out, and an unknown status is still drawn", () => {
  expect(colourOfStatus("error")).not.toBe(colourOfStatus("ok"));
  expect(colourOfStatus("what")).toMatch(/^#/);
});

test("text is dark on light colours and light on dark ones", () => {
  expect(textOn("#ffffff")).toBe("#101418");
  expect(textOn("#000000")).toBe("#ffffff");
  expect(textOn("#0072b2")).toBe("#ffffff");
});

function luminance(colour: string): number {
  const channel = (from: number) => {
    const share = Number.parseInt(colour.slice(from, from + 2), 16) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5);
}

test.each(PALETTE)("text on %s can be read", (colour) => {
  const [light, dark] = [luminance(colour), luminance(textOn(colour))].sort((one, other) => other - one);
  expect((light! + 0.05) / (dark! + 0.05)).toBeGreaterThanOrEqual(4.3);
});

describe.each(["light", "dark"] as const)("lines in the %s theme", (theme) => {
  const colours = PALETTE.map((colour) => lineColour(colour, theme));

  test("can be seen: 3 to 1 against what they are drawn on", () => {
    for (const colour of colours) {
      const [light, dark] = [luminance(colour), luminance(SURFACES[theme])].sort((one, other) => other - one);
      expect((light! + 0.05) / (dark! + 0.05)).toBeGreaterThanOrEqual(3);
    }
  });

  test("neighbours can be told apart", () => {
    const channels = (colour: string) => [1, 3, 5].map((from) => Number.parseInt(colour.slice(from, from + 2), 16));
    expect(new Set(colours).size).toBe(colours.length);
    colours.forEach((colour, place) => {
      const next = channels(colours[(place + 1) % colours.length]!);
      const distance = Math.hypot(...channels(colour).map((value, index) => value - next[index]!));
      expect(distance, `${colour} and its neighbour`).toBeGreaterThan(60);
    });
  });
});
