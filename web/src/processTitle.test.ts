import { expect, test } from "vitest";
import { processTitle } from "./processTitle";

test.each([
  [{ role: "rollout", rank: 17, process_id: "node-6-812" }, "rollout 17"],
  [{ role: "rollout", rank: 0, process_id: "node-6-812" }, "rollout 0"],
  [{ role: "trainer", rank: null, process_id: "node-1-97" }, "trainer"],
  [{ role: "", rank: null, process_id: "node-1-97" }, "node-1-97"],
  [{ role: "", rank: 3, process_id: "node-1-97" }, "node-1-97 3"],
  [{ role: null, rank: null, process_id: null }, "process"],
  [{}, "process"],
])("the title of %o is %s", (place, title) => expect(processTitle(place)).toBe(title));
