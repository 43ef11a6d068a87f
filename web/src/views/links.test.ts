import { describe, expect, it } from "vitest";
import { timelineFinding, timelineSpan, timelineWindow } from "./links";

describe("links into the timeline", () => {
  it("leave room around the time range", () => {
    expect(timelineWindow(10e9, 20e9)).toEqual({ from: "7.000000", to: "23.000000" });
  });
  it("show some time around an instant", () => {
    const { from, to } = timelineWindow(10e9, 10e9);
    expect(Number(to)).toBeGreaterThan(Number(from));
  });
  it("contain their finding", () => {
    expect(timelineFinding({ finding_id: "straggler/1", start_ns: 10e9, end_ns: 20e9 })).toEqual({
      from: "7.000000",
      to: "23.000000",
      finding: "straggler/1",
    });
  });
  it("contain only the span if its time is unknown", () => expect(timelineSpan("ab")).toEqual({ span: "ab" }));
});
