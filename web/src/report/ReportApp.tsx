import { Suspense, useEffect, useState } from "react";
import type { ReportDocument } from "../api";
import { ErrorBoundary } from "../components/ErrorBoundary";
import { Help } from "../components/Help";
import { Loading } from "../components/Loading";
import { Navigation } from "../components/Navigation";
import { RunLine, ThemeAndHelp, WindowChip } from "../components/TopBar";
import { type Live, LiveContext } from "../live";
import { MarksContext, useLoadedMarks } from "../marks";
import { formatCount, formatDate, shorten } from "../units";
import { usePageKeys } from "../usePageKeys";
import { useUrlState } from "../url";
import { VIEWS } from "../views";

/** A report has one run: there is nothing to choose or to compare with. */
const LIVE_ONLY = ["runs", "processes", "ranks", "changes", "sql"];
const REPORT_VIEWS = VIEWS.filter((view) => !LIVE_ONLY.includes(view.name));

/** Complete and final. */
const COMPLETE: Live = {
  state: "live",
  version: 0,
  step: null,
  latestNs: 0,
  pause: () => undefined,
  resume: () => undefined,
};

/** The page's own views, over the data inside the report. */
export function ReportApp({ report }: { report: ReportDocument }) {
  const [viewName] = useUrlState("view", "overview");
  const [isHelpOpen, setIsHelpOpen] = useState(false);
  const view = REPORT_VIEWS.find((one) => one.name === viewName) ?? REPORT_VIEWS[0]!;
  const run = report.run.run_id;
  const marks = useLoadedMarks(run);
  usePageKeys(REPORT_VIEWS, setIsHelpOpen);

  useEffect(() => {
    document.title = `${view.title} · ${report.run.experiment_name || run || "RL-Insight"}`;
  }, [view, report, run]);

  return (
    <LiveContext value={COMPLETE}>
      <MarksContext value={marks}>
        <div className="app">
          <a className="skip" href="#main">
            Skip to content
          </a>
          <Navigation views={REPORT_VIEWS} current={view.name} />
          <header className="top-bar">
            <strong className="report-run" title={run}>
              {shorten(run, 60)}
            </strong>
            <RunLine run={run} />
            <WindowChip run={run} />
            <div className="top-bar-end">
              <ReportNote report={report} />
              <ThemeAndHelp onHelp={() => setIsHelpOpen(true)} />
            </div>
          </header>
          <main id="main" tabIndex={-1}>
            <ErrorBoundary key={view.name}>
              <Suspense fallback={<Loading />}>
                <view.component run={run} />
              </Suspense>
            </ErrorBoundary>
          </main>
          {isHelpOpen && <Help onClose={() => setIsHelpOpen(false)} />}
        </div>
      </MarksContext>
    </LiveContext>
  );
}

/** The scope of the report, when it was created, and what it omits. */
function ReportNote({ report }: { report: ReportDocument }) {
  const { spans, sessions } = report;
  const missing = [
    spans.total > spans.span_id.length
      ? `The longest ${formatCount(spans.span_id.length)} of ${formatCount(spans.total)} spans can be searched and opened; the timeline and the statistics include all of them.`
      : "",
    spans.texts_left_out > 0
      ? `The attributes of ${formatCount(spans.texts_left_out)} spans are omitted because they are too large.`
      : "",
    sessions.total > sessions.sessions.length
      ? `${formatCount(sessions.sessions.length)} of ${formatCount(sessions.total)} sessions are included: an even sample, plus the slowest.`
      : "",
  ].filter(Boolean);
  const title = [
    `Written ${formatDate(report.generated_s * 1e9)} by ${report.generator}.`,
    "Timeline, hotspots and sessions cover the scope; steps, metrics and hardware cover the entire run.",
    ...missing,
  ].join(" ");
  return (
    <span className="report-note" title={title}>
      Report of <b>{report.scope}</b>
      {missing.length > 0 && <span className="warning"> · some data was left out</span>}
    </span>
  );
}
