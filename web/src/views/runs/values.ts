/** A value of a configuration or of an attribute: text as it is, anything else as JSON. */
export function valueText(value: unknown): string {
  return typeof value === "string" ? value : value === undefined ? "" : JSON.stringify(value);
}
