import { describe, expect, test } from "vitest";
import { PALETTE, SURFACES, colorOfName, colorOfStatus, colorOfStep, isWaiting, lineColor, textOn } from "./colors";

test("a name always has the same color", () => {
  const names = Array.from({ length: 200 }, (_, index) => `span ${index}`);
  const first = names.map(colorOfName);
  expect([...names].reverse().map(colorOfName).reverse()).toEqual(first);
  expect(new Set(first).size).toBeGreaterThan(PALETTE.length / 2);
});

test("waiting is gray, whatever it waits for", () => {
  for (const name of ["wait", "wait_for_samples", "rollout.wait", "idle", "trainer/idle", "barrier", "waitForBatch"]) {
    expect(isWaiting(name)).toBe(true);
    expect(colorOfName(name)).toBe(colorOfName("wait"));
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
  expect(colorOfName(one)).not.toBe(colorOfName(other));
});

test("adjacent steps differ, including negative ones", () => {
  for (let step = -20; step < 20; step += 1) expect(colorOfStep(step)).not.toBe(colorOfStep(step + 1));
});

test("errors stand out, and an unknown status is still drawn", () => {
  expect(colorOfStatus("error")).not.toBe(colorOfStatus("ok"));
  expect(colorOfStatus("what")).toMatch(/^#/);
});

test("text is dark on light colors and light on dark ones", () => {
  expect(textOn("#ffffff")).toBe("#101418");
  expect(textOn("#000000")).toBe("#ffffff");
  expect(textOn("#0072b2")).toBe("#ffffff");
});

function luminance(color: string): number {
  const channel = (from: number) => {
    const share = Number.parseInt(color.slice(from, from + 2), 16) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5);
}

test.each(PALETTE)("text on %s can be read", (color) => {
  const [light, dark] = [luminance(color), luminance(textOn(color))].sort((one, other) => other - one);
  expect((light! + 0.05) / (dark! + 0.05)).toBeGreaterThanOrEqual(4.3);
});

describe.each(["light", "dark"] as const)("lines in the %s theme", (theme) => {
  const colors = PALETTE.map((color) => lineColor(color, theme));

  test("are visible: 3 to 1 against their background", () => {
    for (const color of colors) {
      const [light, dark] = [luminance(color), luminance(SURFACES[theme])].sort((one, other) => other - one);
      expect((light! + 0.05) / (dark! + 0.05)).toBeGreaterThanOrEqual(3);
    }
  });

  test("adjacent colors can be distinguished", () => {
    const channels = (color: string) => [1, 3, 5].map((from) => Number.parseInt(color.slice(from, from + 2), 16));
    expect(new Set(colors).size).toBe(colors.length);
    colors.forEach((color, place) => {
      const next = channels(colors[(place + 1) % colors.length]!);
      const distance = Math.hypot(...channels(color).map((value, index) => value - next[index]!));
      expect(distance, `${color} and its neighbor`).toBeGreaterThan(60);
    });
  });
});
