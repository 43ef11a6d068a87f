import { describe, expect, test, vi } from "vitest";
import { type UrlValue, decode, encode, linkTo, navigate } from "./url";

describe("state in the address is read back", () => {
  test.each<[UrlValue, UrlValue]>([
    ["text", ""],
    ["", "text"],
    ["a=b&c=%2F </script> 🚀", ""],
    [12.5, 0],
    [0, 3],
    [1794734769.187197, 0],
    [true, false],
    [false, true],
    [["a", "b,c"], []],
    [[], ["a"]],
  ])("%j with the fallback %j", (value, fallback) => {
    const query = new URLSearchParams(encode(new URLSearchParams("other=1"), "key", value, fallback).toString());
    expect(decode(query, "key", fallback)).toEqual(value);
    expect(query.get("other")).toBe("1");
  });
});

test("the fallback is omitted from the address", () => {
  expect(encode(new URLSearchParams("key=5"), "key", 3, 3).toString()).toBe("");
  expect(encode(new URLSearchParams(), "key", ["a"], ["a"]).toString()).toBe("");
});

test.each([
  ["x", 7],
  ["", 7],
  ["NaN", 7],
  ["1e999", 7],
  ["12", 12],
])("the text %j is the number %d", (text, value) => {
  expect(decode(new URLSearchParams({ key: text }), "key", 7)).toBe(value);
});

test("a link keeps the run and drops the state of the old view", () => {
  expect(linkTo("logs", { level: 30 }, "?view=timeline&run=r1&search=x")).toBe("?view=logs&run=r1&level=30");
  expect(linkTo("logs", { run: "r2" }, "?run=r1")).toBe("?view=logs&run=r2");
  expect(linkTo("logs", { run: null, flag: true, gone: undefined }, "?run=r1")).toBe("?view=logs&flag=1");
});

test("an address that the browser refuses to write is remembered", () => {
  const refuse = () => {
    throw new Error("not for files");
  };
  vi.stubGlobal("window", {
    location: { search: "", pathname: "/report.html" },
    history: { pushState: refuse, replaceState: refuse },
  });
  navigate("?view=timeline&run=a");
  expect(linkTo("sessions")).toBe("?view=sessions&run=a");
  vi.unstubAllGlobals();
});
