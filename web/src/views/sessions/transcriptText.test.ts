import { describe, expect, it } from "vitest";
import type { Transcript } from "../../api";
import { MOST_HITS, asText, contains, cutBy, pieces, visible } from "./transcriptText";

describe("visible", () => {
  it.each([
    ["plain\n\ttext", "plain\n\ttext"],
    ["\x1b[1;31mred\x1b[0m", "red"],
    ["\x1b]8;;x\x07", "␛]8;;x␇"],
    ["\u0000\u007f", "␀␡"],
    ["a\r\nb\rc", "a\nb\nc"],
    ["\u202egpj.exe", "⟨U+202E⟩gpj.exe"],
    ["\ud83d half \udc00", "\ufffd half \ufffd"],
    ["🦊", "🦊"],
    ["<script>alert(1)</script>", "<script>alert(1)</script>"],
  ])("shows %j", (text, shown) => expect(visible(text)).toBe(shown));
});

describe("pieces", () => {
  it("are the text around hits in any case", () =>
    expect(pieces("A cat, a CAT.", "cat")).toEqual(["A ", "cat", ", a ", "CAT", "."]));
  it("takes signs of regular expressions as they are", () => expect(pieces("2+2", "+")).toEqual(["2", "+", "2"]));
  it("are bounded", () => {
    const found = pieces("x".repeat(64_000), "x");
    expect(found).toHaveLength(2 * MOST_HITS + 1);
    expect(found.join("")).toHaveLength(64_000);
  });
});

const transcript: Transcript = {
  session_id: "s",
  task_id: null,
  status: "accepted",
  reason: null,
  step: 1,
  reward: 1,
  tokens: 3,
  is_captured: true,
  is_cut: false,
  characters: 10,
  messages: [
    { role: "user", at_ts: 1, text: "2 + 2?", characters: 6 },
    { role: "tool", at_ts: 2, tool: "calculator", arguments: "2+2", text: "4", characters: 8 },
    { role: "assistant", at_ts: 3, text: null, characters: 12 },
  ],
};

it("writes a conversation as text", () =>
  expect(asText(transcript)).toBe(
    "[user]\n2 + 2?\n\n[tool] calculator(2+2)\n4 … [7 more characters]\n\n" +
      "[assistant]\n[12 characters, not recorded]\n\n[accepted, reward 1]",
  ));

it("finds messages by text, arguments and tool", () =>
  expect(
    ["2 +", "CALC", "2+2", "nothing", ""].map((wanted) => transcript.messages.map((one) => contains(one, wanted))),
  ).toEqual([
    [true, false, false],
    [false, true, false],
    [false, true, false],
    [false, false, false],
    [false, false, false],
  ]));

it("counts characters as the server does", () => expect(cutBy("🦊", 1)).toBe(0));
