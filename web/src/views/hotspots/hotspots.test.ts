import { describe, expect, it } from "vitest";
import type { Span, Step } from "../../api";
import { findNode, flameOf, layOut } from "./flame";
import { type Scope, hotspotConditions, scopeWindow, spanConditions } from "./scope";

const scope = (given: Partial<Scope>): Scope => ({ kind: "all", count: 5, step: 0, from: 0, to: 0, ...given });
const steps: Step[] = [1, 2, 3].map((step) => ({ step, start_ns: step * 100, end_ns: step * 100 + 90, spans: 1, errors: 0 }));

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

  it("turns several steps into the time they took", () => {
    expect(spanConditions(scope({ kind: "last", count: 2 }), steps)).toEqual({ start_ns: 200, end_ns: 390 });
    expect(spanConditions(scope({ kind: "latest" }), steps)).toEqual({ step: 3 });
    expect(scopeWindow(scope({ kind: "step", step: 2 }), steps)).toEqual([200, 290]);
    expect(scopeWindow(scope({ kind: "step", step: 9 }), steps)).toBeNull();
  });
});

const span = (id: string, parent: string | null, name: string, start: number, duration: number | null, status = "ok"): Span => ({
  span_id: id, parent_id: parent, name, start_ns: start, duration_ns: duration, status, trace_id: "", segment: "duration", error: null,
  step: null, session_id: null, attributes: {}, lane_id: 0, lane: null, depth: 0, process_id: "p", role: "trainer", rank: 0,
});

describe("flameOf", () => {
  const roots = flameOf(
    [
      span("a", null, "step", 0, 100),
      span("b", "a", "forward", 0, 40),
      span("c", "a", "forward", 20, 40, "error"),
      span("d", "gone", "orphan", 200, 50),
    ],
    1000,
  );
  it("puts names under roles and their parents", () => {
    expect(roots.map((node) => node.name)).toEqual(["trainer"]);
    expect(roots[0]!.children.map((node) => [node.name, node.wallNs])).toEqual([["step", 100], ["orphan", 50]]);
  });
  it("counts concurrent spans of one name as wall time once", () => {
    const forward = roots[0]!.children[0]!.children[0]!;
    expect(forward).toMatchObject({ name: "forward", count: 2, errors: 1, wallNs: 60 });
  });
  it("counts an open span until now", () => expect(flameOf([span("x", null, "open", 900, null)], 1000)[0]!.wallNs).toBe(100));
  it("survives parents that point at each other", () => {
    expect(flameOf([span("x", "y", "one", 0, 1), span("y", "x", "two", 0, 1)], 10)).not.toHaveLength(0);
  });
  it("never draws children wider than their parent", () => {
    const boxes = layOut(flameOf([span("p", null, "parent", 0, 10), span("q", "p", "one", 0, 10), span("r", "p", "two", 0, 10)], 100));
    const parent = boxes.find((box) => box.node.name === "parent")!;
    const children = boxes.filter((box) => box.depth === parent.depth + 1);
    expect(children.reduce((sum, box) => sum + box.width, 0)).toBeCloseTo(parent.width);
  });
  it("finds a node by its path", () => {
    const step = roots[0]!.children[0]!;
    expect(findNode(roots, step.path)).toBe(step);
    expect(findNode(roots, "nothing")).toBeNull();
  });
});
