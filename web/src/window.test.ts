import { describe, expect, it } from "vitest";
import type { Step } from "./api";
import { linkTo } from "./url";
import { boundsOf, parseWindow, stepsOf, windowText, windowTitle } from "./window";

const steps: Step[] = [36, 37, 38].map((step) => ({
  step,
  start_ns: step * 10e9,
  end_ns: step === 38 ? null : (step + 1) * 10e9,
  spans: 1,
  errors: 0,
}));

describe("window", () => {
  it.each(["37-40", "0-0", "1794807048.166000-1794807103.489000"])("survives the address as %s", (text) =>
    expect(windowText(parseWindow(text))).toBe(text),
  );
  it.each(["", "x", "9-3", "5.5-5.5", "7.0-2.0", "1-2.5"])("is none for %j", (text) =>
    expect(parseWindow(text)).toBeNull(),
  );
  it("of one step may be written short", () =>
    expect(parseWindow("37")).toEqual({ kind: "steps", first: 37, last: 37 }));
  it("knows the time of its steps, up to now for the running one", () => {
    expect(boundsOf(parseWindow("37-37"), steps, 395e9)).toEqual({ start_ns: 370e9, end_ns: 380e9 });
    expect(boundsOf(parseWindow("37-38"), steps, 395e9)).toEqual({ start_ns: 370e9, end_ns: 395e9 });
    expect(boundsOf(parseWindow("90-91"), steps, 395e9)).toBeNull();
  });
  it("of time knows the steps that overlap it", () => {
    expect(stepsOf(parseWindow("365.0-371.5"), steps)).toEqual({ kind: "steps", first: 36, last: 37 });
    expect(stepsOf(parseWindow("1.0-2.0"), steps)).toBeNull();
  });
  it("is said in words", () => expect(windowTitle({ kind: "steps", first: 37, last: 37 })).toBe("step 37"));
  it("goes along to other views, but not to another run", () => {
    expect(linkTo("logs", {}, "?view=timeline&run=a&window=37-40&search=x")).toBe("?view=logs&run=a&window=37-40");
    expect(linkTo("logs", { run: "b" }, "?run=a&window=37-40")).toBe("?view=logs&run=b");
    expect(linkTo("logs", { run: "a" }, "?run=a&window=37-40")).toBe("?view=logs&run=a&window=37-40");
  });
});
