// Sanitizes, searches and formats the text of a conversation; the component draws it.
import type { Transcript, TranscriptMessage } from "../../api";

const COLOR_CODES = /\x1b\[[0-9;]*m/g; // eslint-disable-line no-control-regex
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f]/g; // eslint-disable-line no-control-regex
/** Bidirectional control characters, which can disguise text. */
const DIRECTIONS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const LONE_SURROGATES = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Text with control characters replaced by visible symbols. */
export function visible(text: string): string {
  return text
    .replace(/\r\n?/g, "\n")
    .replace(COLOR_CODES, "")
    .replace(CONTROLS, (one) => (one === "\x7f" ? "␡" : String.fromCharCode(0x2400 + one.charCodeAt(0))))
    .replace(DIRECTIONS, (one) => `⟨U+${one.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`)
    .replace(LONE_SURROGATES, "\ufffd");
}

/** Further matches in one text are not highlighted. */
export const MOST_HITS = 500;

/** Text split into pieces: those at odd indexes are matches. */
export function pieces(text: string, wanted: string): string[] {
  if (wanted === "") return [text];
  const found: string[] = [];
  let from = 0;
  for (const hit of text.matchAll(pattern(wanted))) {
    if (found.length >= 2 * MOST_HITS) break;
    found.push(text.slice(from, hit.index), hit[0]);
    from = hit.index + hit[0].length;
  }
  return [...found, text.slice(from)];
}

function pattern(wanted: string): RegExp {
  return new RegExp(wanted.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
}

/** Whether a message matches the search. */
export function contains(message: TranscriptMessage, wanted: string): boolean {
  if (wanted === "") return false;
  return [message.text, message.arguments, message.tool].some(
    (text) => text != null && pattern(wanted).test(visible(text)),
  );
}

/** The conversation as plain text, for the clipboard. */
export function asText(transcript: Transcript): string {
  const lines = transcript.messages.map((message) => {
    const call = message.tool == null ? "" : ` ${message.tool}(${message.arguments ?? ""})`;
    const text = message.text ?? `[${message.characters ?? 0} characters, not recorded]`;
    const more = cutBy(message.text, message.characters);
    return `[${message.role}]${call}\n${text}${more > 0 ? ` … [${more} more characters]` : ""}`;
  });
  const end = transcript.reward === null ? transcript.status : `${transcript.status}, reward ${transcript.reward}`;
  return [...lines, `[${end}]`].join("\n\n");
}

/** The number of truncated characters. */
export function cutBy(text: string | null | undefined, characters: number | undefined): number {
  return text == null ? 0 : Math.max(0, (characters ?? 0) - Array.from(text).length);
}
