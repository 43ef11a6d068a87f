// The common part of all searches with conditions: `status:failed longer:2s task:"a b" some words`.

/** Splits at spaces; quotes keep a value with spaces together. */
function tokens(text: string): string[] {
  return text.match(/(?:[a-z_]+:)?"[^"]*"?|\S+/gi) ?? [];
}

export function unquoted(token: string): string {
  return token.replaceAll('"', "");
}

interface Parsed {
  /** The words to search for as text. */
  words: string[];
  /** An error message for invalid input. */
  problem: string | null;
}

/**
 * Parses words and conditions. `take` receives each condition that has a value, and returns an error message for an
 * invalid one; `plain` returns whether it accepted a token without a prefix.
 */
export function parseConditions(
  text: string,
  known: readonly string[],
  take: (key: string, value: string, words: string[]) => string | null,
  plain: (token: string) => boolean = () => false,
): Parsed {
  const words: string[] = [];
  let problem: string | null = null;
  for (const token of tokens(text)) {
    if (plain(token)) continue;
    // A URL is text; anything else with a colon is a condition.
    const found = /^([a-z_]+):(?!\/\/)(.*)$/is.exec(token);
    if (found === null) {
      if (unquoted(token) !== "") words.push(unquoted(token));
      continue;
    }
    const [key, value] = [found[1]!.toLowerCase(), unquoted(found[2]!)];
    if (!known.includes(key))
      problem = `unknown condition “${key}:”: use ${known.join(", ")}. To search for it as text, quote it: "${token}".`;
    // While typing, a prefix without a value is not a condition yet.
    else if (value !== "") problem = take(key, value, words) ?? problem;
  }
  return { words, problem };
}

const UNITS: Readonly<Record<string, number>> = { "": 1, us: 1e-6, ms: 1e-3, s: 1, m: 60, min: 60, h: 3600 };

/** Parses `2s`, `500ms` or `3min`; null if it is not a duration. */
export function parseSeconds(text: string): number | null {
  const found = /^(\d+(?:\.\d+)?)\s*([a-z]*)$/i.exec(text);
  const unit = found === null ? undefined : UNITS[found[2]!.toLowerCase()];
  return found === null || unit === undefined ? null : Number(found[1]) * unit;
}

/** Describes the format of a duration. */
export function noDuration(value: string): string {
  return `cannot parse “${value}” as a duration: use longer:2s, longer:500ms or longer:3min.`;
}
