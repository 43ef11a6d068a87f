/** A value of a configuration or of an attribute: strings unchanged, anything else as JSON. */
export function valueText(value: unknown): string {
  return typeof value === "string" ? value : value === undefined ? "" : JSON.stringify(value);
}
