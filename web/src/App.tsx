import { Suspense, useEffect, useState } from "react";
import { api } from "./api";
import { EmptyState } from "./components/EmptyState";
import { ErrorBoundary } from "./components/ErrorBoundary";
import { Help } from "./components/Help";
import { Navigation } from "./components/Navigation";
import { TopBar } from "./components/TopBar";
import { LiveProvider } from "./LiveProvider";
import { usePageKeys } from "./usePageKeys";
import { useUrlState } from "./url";
import { useQuery } from "./useQuery";
import { VIEWS } from "./views";

/** The page: navigation, run picker and the view that the address names. */
export function App() {
  const [chosenRun] = useUrlState("run", "");
  return (
    <LiveProvider run={chosenRun === "" ? null : chosenRun}>
      <Shell chosenRun={chosenRun} />
    </LiveProvider>
  );
}

function Shell({ chosenRun }: { chosenRun: string }) {
  const [viewName] = useUrlState("view", "overview");
  const [isHelpOpen, setIsHelpOpen] = useState(false);
  const runs = useQuery("runs", (signal) => api.runs(signal), { everyMs: 3000 });
  const view = VIEWS.find((one) => one.name === viewName) ?? VIEWS[0];
  const run = chosenRun !== "" ? chosenRun : runs.data?.find((one) => !one.problem)?.run_id;
  const info = runs.data?.find((one) => one.run_id === run);
  usePageKeys(VIEWS, setIsHelpOpen);

  useEffect(() => {
    document.title = `${view?.title ?? ""} · ${info?.experiment_name || run || "RL-Insight"}`;
  }, [view, info, run]);

  return (
    <div className="app">
      <a className="skip" href="#main">
        Skip to content
      </a>
      <Navigation current={view?.name ?? ""} />
      <TopBar runs={runs.data ?? []} run={run} isFollowing={chosenRun === ""} onHelp={() => setIsHelpOpen(true)} />
      <main id="main" tabIndex={-1}>
        {view !== undefined && run !== undefined ? (
          <ErrorBoundary key={`${view.name} ${run}`}>
            <Suspense
              fallback={
                <div className="loading" role="status">
                  Loading…
                </div>
              }
            >
              <view.component run={run} key={run} />
            </Suspense>
          </ErrorBoundary>
        ) : (
          <NoRuns error={runs.error} isLoading={runs.isLoading} />
        )}
      </main>
      {isHelpOpen && <Help onClose={() => setIsHelpOpen(false)} />}
    </div>
  );
}

function NoRuns({ error, isLoading }: { error: string | undefined; isLoading: boolean }) {
  if (error !== undefined) return <EmptyState title="No answer from the server" text={error} />;
  if (isLoading)
    return (
      <div className="loading" role="status">
        Loading…
      </div>
    );
  return (
    <EmptyState
      title="No runs yet"
      text="Point a training at this server; it shows up here by itself."
      code={`import rl_insight as insight\n\ninsight.init("my-project", "my-experiment",\n             config={"server": {"url": "${window.location.origin}"}})`}
    />
  );
}
