import { describe, expect, it } from "vitest";
import { parseSearch, withCondition } from "./search";

describe("parseSearch", () => {
  it.each([
    ["", {}],
    ["hello world", { text: "hello world" }],
    ["step:7", { first_step: 7, last_step: 7 }],
    ["step:3-9", { first_step: 3, last_step: 9 }],
    ["step:>5", { first_step: 6 }],
    ["step:<=5", { last_step: 5 }],
    ["status:failed", { status: ["failed"] }],
    ["status:open,lost", { status: ["pending", "lost"] }],
    ["task:t-1 session:abc", { task_id: "t-1", session_id: "abc" }],
    ['task:"a b" x', { task_id: "a b", text: "x" }],
    ["phase:toolcall", { phase: "toolcall" }],
    ["error:refused", { status: ["failed", "cancelled", "dropped", "lost"], text: "refused" }],
    ["error:*", { status: ["failed", "cancelled", "dropped", "lost"] }],
    ["longer:500ms", { longer_than_s: 0.5 }],
    ["role:rollout rank:3", { role: "rollout", rank: 3 }],
    ["http://x", { text: "http://x" }],
    ["STEP:4", { first_step: 4, last_step: 4 }],
  ])("reads %j", (text, query) => expect(parseSearch(text)).toEqual({ query, problem: null }));

  it("waits for a value while somebody types", () =>
    expect(parseSearch("step:")).toEqual({ query: {}, problem: null }));

  it.each(["step:x", "status:nope", "longer:soon", "rank:first"])("says what is wrong with %j", (text) => {
    expect(parseSearch(text).problem).not.toBeNull();
  });
});

describe("withCondition", () => {
  it("replaces a condition and keeps the rest", () => {
    expect(withCondition("status:failed foo", "status", "lost")).toBe("foo status:lost");
    expect(withCondition("status:failed foo", "status", null)).toBe("foo");
    expect(withCondition("", "task", "a b")).toBe('task:"a b"');
  });
});
