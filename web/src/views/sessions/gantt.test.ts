import { describe, expect, it } from "vitest";
import type { Session } from "../../api";
import { axisOf, extentOf, phasesOf, ticks } from "./gantt";

const ended: Session = {
  session_id: "a",
  status: "accepted",
  submit_ts: 100,
  finalized_ts: 104,
  phases: {
    generate: [
      { start_ts: 101, end_ts: 102, outcome: "ok" },
      { start_ts: 102.5, end_ts: 103, outcome: "error", span_id: "ff" },
    ],
    execution: [{ start_ts: 101, end_ts: 103.5, outcome: "ok" }],
  },
};
const running: Session = {
  session_id: "b",
  status: "pending",
  submit_ts: 103,
  phases: { toolcall: [{ start_ts: 104, outcome: "open" }] },
};

describe("phasesOf", () => {
  it("puts enclosing phases first, so that they are drawn behind the others", () => {
    expect(phasesOf(ended).map((phase) => phase.name)).toEqual(["execution", "generate", "generate"]);
  });
  it("keeps a running phase open", () => expect(phasesOf(running)[0]).toMatchObject({ end: null, outcome: "open" }));
  it("ignores intervals without a start", () => expect(phasesOf({ session_id: "c", phases: { x: [{}] } })).toEqual([]));
});

describe("extentOf", () => {
  it("ends an open session now", () => expect(extentOf(running, 110)).toEqual([103, 110]));
  it("ends a finished one when it was finalized", () => expect(extentOf(ended, 999)).toEqual([100, 104]));
});

describe("axisOf", () => {
  it("compares lengths from the submission", () => expect(axisOf([ended, running], "submit", 110)).toEqual([0, 7]));
  it("shows the clock", () => expect(axisOf([ended, running], "clock", 110)).toEqual([100, 110]));
});

describe("ticks", () => {
  it("are at round numbers within the range", () => expect(ticks(0, 7, 4)).toEqual([0, 2, 4, 6]));
  it("cope with an empty range", () => expect(ticks(3, 3, 4)).toEqual([3]));
});
