// What all searches with conditions share: `status:failed longer:2s task:"a b" some words`.

/** Splits at spaces; quotes keep a value with spaces together. */
export function tokens(text: string): string[] {
  return text.match(/(?:[a-z_]+:)?"[^"]*"?|\S+/gi) ?? [];
}

export function unquoted(token: string): string {
  return token.replaceAll('"', "");
}

const UNITS: Readonly<Record<string, number>> = { "": 1, us: 1e-6, ms: 1e-3, s: 1, m: 60, min: 60, h: 3600 };

/** Reads `2s`, `500ms` or `3min`; null where it is not a duration. */
export function parseSeconds(text: string): number | null {
  const found = /^(\d+(?:\.\d+)?)\s*([a-z]*)$/i.exec(text);
  const unit = found === null ? undefined : UNITS[found[2]!.toLowerCase()];
  return found === null || unit === undefined ? null : Number(found[1]) * unit;
}
