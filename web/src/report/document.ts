// The data inside a report: compressed JSON in Base64, which no name can break out of.
import type { ReportDocument } from "../api";

/** Reads the data of a report. */
export async function readDocument(text: string): Promise<ReportDocument> {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(stream).json()) as ReportDocument;
}
