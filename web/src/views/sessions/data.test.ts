import { expect, it } from "vitest";
import { finished } from "./data";

it("uses each ended session once, ordered by submission", () => {
  const found = finished([
    { session_id: "b", total_s: 2, submit_ts: 9 },
    { session_id: "c", submit_ts: 1 },
    { session_id: "b", total_s: 2, submit_ts: 9 },
    { session_id: "a", total_s: 1, submit_ts: 3 },
  ]);
  expect(found).toEqual([
    { session_id: "a", total_s: 1, submit_ts: 3 },
    { session_id: "b", total_s: 2, submit_ts: 9 },
  ]);
});
