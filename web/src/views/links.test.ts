import { describe, expect, it } from "vitest";
import { timelineFinding, timelineSpan, timelineWindow } from "./links";

describe("links into the timeline", () => {
  it("leave room around the stretch of time", () => {
    expect(timelineWindow(10e9, 20e9)).toEqual({ from: "7.000000", to: "23.000000" });
  });
  it("show something of an instant too", () => {
    const { from, to } = timelineWindow(10e9, 10e9);
    expect(Number(to)).toBeGreaterThan(Number(from));
  });
  it("name the finding that they are about", () => {
    expect(timelineFinding({ finding_id: "straggler/1", start_ns: 10e9, end_ns: 20e9 })).toEqual({
      from: "7.000000",
      to: "23.000000",
      finding: "straggler/1",
    });
  });
  it("name the span alone where its time is unknown", () => expect(timelineSpan("ab")).toEqual({ span: "ab" }));
});
