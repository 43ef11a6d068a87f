import { describe, expect, test } from "vitest";
import type { RunInfo } from "./api";
import { runToShow } from "./runToShow";

function run(run_id: string, problem = ""): RunInfo {
  return { run_id, file: `${run_id}.duckdb`, size_bytes: 1, modified_s: 1, problem };
}

describe("the visible run", () => {
  test("is the latest that can be read", () => {
    expect(runToShow([run("broken", "open elsewhere"), run("b"), run("a")], "", "").run).toBe("b");
  });
  test("stays when another run begins, which is offered", () => {
    expect(runToShow([run("new"), run("b")], "", "b")).toEqual({ run: "b", newer: "new" });
  });
  test("stays while the server does not respond", () => {
    expect(runToShow([], "", "b")).toEqual({ run: "b", newer: undefined });
  });
  test("changes when it was deleted", () => {
    expect(runToShow([run("a")], "", "b")).toEqual({ run: "a", newer: undefined });
  });
  test("is the one in the address", () => {
    expect(runToShow([run("new"), run("b")], "a", "b")).toEqual({ run: "a", newer: undefined });
  });
});
