import { Suspense, useEffect, useState } from "react";
import { EmptyState } from "./components/EmptyState";
import { ErrorBoundary } from "./components/ErrorBoundary";
import { Help } from "./components/Help";
import { Loading } from "./components/Loading";
import { Navigation } from "./components/Navigation";
import { Snippet } from "./components/Snippet";
import { TopBar } from "./components/TopBar";
import { LiveProvider } from "./LiveProvider";
import { MarksContext, useLoadedMarks } from "./marks";
import { usePageKeys } from "./usePageKeys";
import { runToShow } from "./runToShow";
import { useUrlState } from "./url";
import { useAnswer } from "./useQuery";
import { VIEWS } from "./views";

/** The page: navigation, run picker and the view in the address. */
export function App() {
  const [chosenRun] = useUrlState("run", "");
  const [keptRun, setKeptRun] = useState("");
  const run = chosenRun || keptRun;
  return (
    <LiveProvider run={run === "" ? null : run}>
      <Shell chosenRun={chosenRun} keptRun={keptRun} onKeep={setKeptRun} />
    </LiveProvider>
  );
}

interface ShellProps {
  /** The run in the address; empty for the latest. */
  chosenRun: string;
  /** The run that was the latest when the page was opened. */
  keptRun: string;
  onKeep: (run: string) => void;
}

function Shell({ chosenRun, keptRun, onKeep }: ShellProps) {
  const [viewName] = useUrlState("view", "overview");
  const [isHelpOpen, setIsHelpOpen] = useState(false);
  const runs = useAnswer("runs", {}, { everyMs: 3000, pollMs: 3000 });
  const view = VIEWS.find((one) => one.name === viewName) ?? VIEWS[0];
  const { run, newer } = runToShow(runs.data ?? [], chosenRun, keptRun);
  const info = runs.data?.find((one) => one.run_id === run);
  useEffect(() => {
    if (chosenRun === "" && run !== undefined) onKeep(run);
  }, [chosenRun, run, onKeep]);
  const marks = useLoadedMarks(run);
  usePageKeys(VIEWS, setIsHelpOpen);

  useEffect(() => {
    document.title = `${view?.title ?? ""} · ${info?.experiment_name || run || "RL-Insight"}`;
  }, [view, info, run]);

  return (
    <MarksContext value={marks}>
      <div className="app">
        <a className="skip" href="#main">
          Skip to content
        </a>
        <Navigation current={view?.name ?? ""} />
        <TopBar
          runs={runs.data ?? []}
          run={run}
          newer={newer}
          isLatest={chosenRun === ""}
          onLatest={() => onKeep("")}
          onHelp={() => setIsHelpOpen(true)}
        />
        <main id="main" tabIndex={-1}>
          {view !== undefined && run !== undefined ? (
            <ErrorBoundary key={`${view.name} ${run}`}>
              <Suspense fallback={<Loading />}>
                <view.component run={run} key={run} />
              </Suspense>
            </ErrorBoundary>
          ) : (
            <NoRuns error={runs.error} isLoading={runs.isLoading} />
          )}
        </main>
        {isHelpOpen && <Help onClose={() => setIsHelpOpen(false)} />}
      </div>
    </MarksContext>
  );
}

function NoRuns({ error, isLoading }: { error: string | undefined; isLoading: boolean }) {
  if (error !== undefined) return <EmptyState title="No response from the server" text={error} />;
  if (isLoading) return <Loading />;
  return (
    <EmptyState
      title="No runs yet"
      text="Point a training job at this server; its run appears here automatically."
      code={firstLines(window.location.origin)}
    >
      <p>Or run the demo, a small simulated training job:</p>
      <Snippet code={`rl-insight demo --server ${window.location.origin}`} />
    </EmptyState>
  );
}

/** The smallest program that records something. */
function firstLines(server: string): string {
  return `import rl_insight as insight

insight.init("my-project", "my-experiment", config={"server": {"url": "${server}"}})
with insight.trace_state("rollout"):
    insight.metric_gauge("reward_mean", 0.5)
insight.finish()`;
}
