import { describe, expect, it } from "vitest";
import type { FlameNode, Step } from "../../api";
import { findNode, layOut, placed } from "./flame";
import { type Scope, hotspotConditions, scopeWindow, seriesConditions } from "./scope";

const scope = (given: Partial<Scope>): Scope => ({ kind: "all", count: 5, step: 0, from: 0, to: 0, ...given });
const steps: Step[] = [1, 2, 3].map((step) => ({
  step,
  start_ns: step * 100,
  end_ns: step * 100 + 90,
  spans: 1,
  errors: 0,
}));

describe("scope", () => {
  it.each([
    [scope({ kind: "latest" }), { last_steps: 1 }],
    [scope({ kind: "last", count: 3 }), { last_steps: 3 }],
    [scope({ kind: "last", count: -4 }), { last_steps: 1 }],
    [scope({ kind: "step", step: 7 }), { step: 7 }],
    [scope({ kind: "all" }), {}],
    [scope({ kind: "window", from: 1, to: 2 }), { start_ns: 1e9, end_ns: 2e9 }],
    [scope({ kind: "window", from: 2, to: 2 }), {}],
  ])("asks the server for %j", (given, conditions) => expect(hotspotConditions(given)).toEqual(conditions));

  it("knows the time of the steps it covers", () => {
    expect(scopeWindow(scope({ kind: "last", count: 2 }), steps)).toEqual([200, 390]);
    expect(scopeWindow(scope({ kind: "step", step: 2 }), steps)).toEqual([200, 290]);
    expect(scopeWindow(scope({ kind: "step", step: 9 }), steps)).toBeNull();
  });

  it.each([
    [scope({ kind: "step", step: 9 }), { first_step: 9, last_step: 9 }],
    [scope({ kind: "window", from: 1, to: 2 }), { start_ns: 1e9, end_ns: 2e9 }],
    [scope({ kind: "window", from: 2, to: 2 }), {}],
    [scope({ kind: "all" }), {}],
  ])("looks for the series of %j", (given, conditions) => expect(seriesConditions(given)).toEqual(conditions));
});

const node = (name: string, total_ns: number, children: FlameNode[] = []): FlameNode => ({
  name,
  count: 1,
  errors: 0,
  wall_ns: total_ns,
  total_ns,
  children,
});

describe("layOut", () => {
  it("never draws children wider than their parent", () => {
    const boxes = layOut(placed([node("trainer", 10, [node("parent", 10, [node("one", 10), node("two", 10)])])]));
    const parent = boxes.find((box) => box.node.name === "parent")!;
    const children = boxes.filter((box) => box.depth === parent.depth + 1);
    expect(children.reduce((sum, box) => sum + box.width, 0)).toBeCloseTo(parent.width);
  });
  it("leaves room where a parent ran alone", () => {
    const [parent, child] = layOut(placed([node("parent", 100, [node("child", 25)])]));
    expect([parent!.width, child!.width, child!.left]).toEqual([1, 0.25, 0]);
  });
  it("finds a node by its path", () => {
    const roots = placed([node("trainer", 10, [node("step", 10)])]);
    const step = layOut(roots).find((box) => box.node.name === "step")!;
    expect(findNode(roots, step.path)?.node).toBe(step.node);
    expect(findNode(roots, "nothing")).toBeNull();
  });
});
