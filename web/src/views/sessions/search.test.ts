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
    ["reward:>=0.5", { least_reward: 0.5 }],
    ["reward:1", { least_reward: 1, most_reward: 1 }],
    ["reward:>-1", { least_reward: -1 + 2 ** -52 }],
    ["tokens:<64", { most_tokens: 63 }],
    ["tokens:>1000", { least_tokens: 1001 }],
    ["version:7 reason:timeout", { model_version: "7", reason: "timeout" }],
    ['"foo:bar"', { text: "foo:bar" }],
    ["http://x", { text: "http://x" }],
    ["STEP:4", { first_step: 4, last_step: 4 }],
  ])("reads %j", (text, query) => expect(parseSearch(text)).toEqual({ query, problem: null }));

  it("waits for a value while typing", () => expect(parseSearch("step:")).toEqual({ query: {}, problem: null }));

  it("takes what is below a reward without the reward itself", () => {
    const { most_reward } = parseSearch("reward:<0.1").query;
    expect(most_reward).toBeLessThan(0.1);
    expect(most_reward).toBeGreaterThan(0.0999999);
  });

  it.each(["step:x", "status:nope", "longer:soon", "rank:first", "reward:high", "tokens:1.5", "foo:bar"])(
    "says what is wrong with %j",
    (text) => {
      expect(parseSearch(text).problem).not.toBeNull();
    },
  );
});

describe("withCondition", () => {
  it("replaces a condition and keeps the rest", () => {
    expect(withCondition("status:failed foo", "status", "lost")).toBe("foo status:lost");
    expect(withCondition("status:failed foo", "status", null)).toBe("foo");
    expect(withCondition("", "task", "a b")).toBe('task:"a b"');
  });
});
