// Texts of a conversation, made safe to look at, searched, and written out; drawing is left to the component.
import type { Transcript, TranscriptMessage } from "../../api";

const COLOUR_CODES = /\x1b\[[0-9;]*m/g; // eslint-disable-line no-control-regex
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f]/g; // eslint-disable-line no-control-regex
/** Characters that turn the direction of what follows: a text could look like another one. */
const DIRECTIONS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const LONE_SURROGATES = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** A text in which everything that would act on the page, or on its reader, is a visible sign instead. */
export function visible(text: string): string {
  return text
    .replace(/\r\n?/g, "\n")
    .replace(COLOUR_CODES, "")
    .replace(CONTROLS, (one) => (one === "\x7f" ? "␡" : String.fromCharCode(0x2400 + one.charCodeAt(0))))
    .replace(DIRECTIONS, (one) => `⟨U+${one.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`)
    .replace(LONE_SURROGATES, "\ufffd");
}

/** More hits in one text are not marked. */
export const MOST_HITS = 500;

/** A text in pieces: those at odd places are hits. */
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

/** Whether a message contains what is searched for. */
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

/** How many characters of a text are missing. */
export function cutBy(text: string | null | undefined, characters: number | undefined): number {
  return text == null ? 0 : Math.max(0, (characters ?? 0) - Array.from(text).length);
}
