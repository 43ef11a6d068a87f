// The report: the page's views in one file, with the run's data embedded instead of a server.
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { type ReportDocument, answerFrom, errorText } from "../api";
import { EmptyState } from "../components/EmptyState";
import { setReportFacts } from "../reportFacts";
import "../styles.css";
import { apply } from "../theme";
import { ReportApp } from "./ReportApp";
import { readDocument } from "./document";
import "./report.css";
import { sourceOf } from "./source";

const VERSION = 4;

async function start(): Promise<void> {
  apply();
  const root = createRoot(document.getElementById("root")!);
  try {
    const report = await readDocument(document.getElementById("report-data")?.textContent ?? "");
    if (report.version !== VERSION) throw new Error(`its data has version ${report.version}, not ${VERSION}`);
    prepare(report);
    root.render(
      <StrictMode>
        <ReportApp report={report} />
      </StrictMode>,
    );
  } catch (error) {
    const why = errorText(error);
    root.render(
      <EmptyState
        title="Cannot read this report"
        text={`The file is damaged, or the browser is too old: ${why}. Write the report again, or try a newer browser.`}
      />,
    );
  }
}

function prepare(report: ReportDocument): void {
  const { scope, step, start_ns, end_ns, now_ns } = report;
  setReportFacts({ scope, step, startNs: start_ns, endNs: end_ns, nowMs: now_ns / 1e6 });
  answerFrom(sourceOf(report));
}

void start();
