// Facts for views that are shown in a report instead of the live page.

export interface ReportFacts {
  /** A description of the scope of hotspots, spans and sessions. */
  scope: string;
  /** The step of the scope; null for the entire run. */
  step: number | null;
  /** The time range of the spans, in nanoseconds. */
  startNs: number;
  endNs: number;
  /** When the report was written; for a run that had ended, its last sign of life. */
  nowMs: number;
}

let facts: ReportFacts | null = null;

/** Marks the page as a report; called before anything is drawn. */
export function setReportFacts(known: ReportFacts): void {
  facts = known;
}

/** The facts of the report; null on the live page. */
export function reportFacts(): ReportFacts | null {
  return facts;
}

/** Now in milliseconds since 1970; in a report, that of its run. */
export function nowMs(): number {
  return facts === null ? Date.now() : facts.nowMs;
}
