// The colors of the severities that the server reports.
import type { OpenWork } from "./api";

export type Tone = "good" | "warning" | "bad" | "plain";
export type Severity = NonNullable<OpenWork["severity"]>;

const TONES: Readonly<Record<Severity, Tone>> = { info: "plain", warning: "warning", critical: "bad" };
const CLASSES: Readonly<Record<Severity, string>> = { info: "", warning: "warning", critical: "bad" };

/** The tone of a tile; good without a severity. */
export function toneOf(severity: Severity | null | undefined): Tone {
  return severity == null ? "good" : TONES[severity];
}

/** The class that colors a text by its severity. */
export function severityClass(severity: Severity | null | undefined): string {
  return severity == null ? "" : CLASSES[severity];
}
