import { expect, test } from "vitest";
import { reasonsOf } from "./processes";

test("shows what each process lost, and why", () => {
  const of = (process_id: string, kind: string, reason: string, count: number) => ({
    ...{ process_id, kind, reason, count },
    role: "rollout",
    rank: 3,
  });
  const found = reasonsOf([of("a", "spans", "queue_full", 1234), of("a", "logs", "too_large", 2)]);
  expect(found.get("a")).toBe("1,234 spans: queue full; 2 logs: too large");
  expect(found.get("b")).toBeUndefined();
});
