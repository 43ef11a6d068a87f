import { expect, test } from "vitest";
import { frequentNames } from "./frequentNames";

const marks = (name: string, count: number) => Array.from({ length: count }, () => ({ name }));

test("a name that is marked in every step is folded, and a rare one is not", () => {
  expect([...frequentNames([...marks("weights_published", 60), ...marks("config_changed", 1)])]).toEqual([
    "weights_published",
  ]);
});

test("a few marks of a name are all drawn", () => {
  expect(frequentNames(marks("checkpoint", 12)).size).toBe(0);
});
