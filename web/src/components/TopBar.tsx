import { useEffect, useState } from "react";
import type { RunInfo } from "../api";
import { useLive } from "../live";
import { useTheme } from "../theme";
import { formatAgo, formatCount, formatDuration, shorten, counted } from "../units";
import { useUrlState } from "../url";
import { SavedViewsMenu } from "./SavedViewsMenu";
import { useAnswer } from "../useQuery";
import { useWindow, windowTitle } from "../window";

interface Props {
  runs: readonly RunInfo[];
  run: string | undefined;
  /** A run that began after the visible one. */
  newer: string | undefined;
  /** True if no run was chosen: the page shows the run that was the latest when it was opened. */
  isLatest: boolean;
  /** Switches to the run that is the latest now. */
  onLatest: () => void;
  onHelp: () => void;
}

/** The visible run, its state in one line, and whether the page is live. */
export function TopBar({ runs, run, newer, isLatest, onLatest, onHelp }: Props) {
  return (
    <header className="top-bar">
      <RunPicker runs={runs} run={run} isLatest={isLatest} onLatest={onLatest} />
      {newer !== undefined && (
        <button type="button" onClick={onLatest} title={`Show ${newer}`}>
          Newer run
        </button>
      )}
      {run !== undefined && <RunLine run={run} />}
      {run !== undefined && <WindowChip run={run} />}
      <div className="top-bar-end">
        <SavedViewsMenu />
        <LiveBadge />
        <ThemeAndHelp onHelp={onHelp} />
      </div>
    </header>
  );
}

/** The two buttons at the end of the bar. */
export function ThemeAndHelp({ onHelp }: { onHelp: () => void }) {
  const [theme, toggleTheme] = useTheme();
  return (
    <>
      <button
        type="button"
        className="icon-button"
        onClick={toggleTheme}
        aria-label={`Use the ${theme === "dark" ? "light" : "dark"} theme`}
        title="Switch between dark and light"
      >
        {theme === "dark" ? "☀" : "☾"}
      </button>
      <button
        type="button"
        className="icon-button"
        onClick={onHelp}
        aria-label="Keyboard help"
        title="Keyboard help (?)"
      >
        ?
      </button>
    </>
  );
}

function RunPicker({ runs, run, isLatest, onLatest }: Omit<Props, "onHelp" | "newer">) {
  const [, setRun] = useUrlState("run", "");
  const [, setWindow] = useUrlState("window", "");
  const isListed = runs.some((one) => one.run_id === run);
  const choose = (chosen: string) => {
    if (chosen === "") onLatest();
    setRun(chosen, "push");
    setWindow("");
  };
  return (
    <label className="field run-picker">
      <span className="visually-hidden">Run</span>
      <select value={isLatest ? "" : run} onChange={(event) => choose(event.target.value)}>
        <option value="">{`Latest run${isLatest && run !== undefined ? `: ${shorten(run, 60)}` : ""}`}</option>
        {!isListed && !isLatest && run !== undefined && <option value={run}>{shorten(run, 70)}</option>}
        {runs.map((one) => (
          <option key={one.run_id} value={one.run_id} disabled={Boolean(one.problem)}>
            {shorten(one.run_id, 70)}
            {one.state !== undefined && one.state !== "ended" && ` · ${one.state}`}
            {one.state !== "running" && one.ended_ns ? ` · ${formatAgo(one.ended_ns)}` : ""}
          </option>
        ))}
      </select>
    </label>
  );
}

/** The run in one line: its names and its progress. */
export function RunLine({ run }: { run: string }) {
  const { data } = useAnswer("summary", { run }, { everyMs: 2000 });
  // Rollouts may be a step ahead: the step of a run is that of the leading role.
  const latest = useAnswer("steps", { run, limit: 1 }, { everyMs: 2000 }).data?.at(-1);
  if (data === undefined) return null;
  const facts = [
    latest === undefined ? null : `step ${formatCount(latest.step)}`,
    data.start_ns !== null && data.end_ns !== null ? formatDuration(data.end_ns - data.start_ns) : null,
    counted(data.processes, "process", "processes"),
    counted(data.lanes, "lane"),
  ];
  return (
    <div className="run-line">
      <span className="run-name" title={`${data.project} / ${data.experiment_name}`}>
        {shorten([data.project, data.experiment_name].filter(Boolean).join(" / "), 60)}
      </span>
      <span className="muted">{facts.filter((fact) => fact !== null).join(" · ")}</span>
    </div>
  );
}

/** The window of all views, if it is not the entire run. */
export function WindowChip({ run }: { run: string }) {
  const { window, setWindow } = useWindow(run);
  if (window === null) return null;
  return (
    <button
      type="button"
      className="chip window-chip"
      onClick={() => setWindow(null)}
      title="All views show this part of the run. Click to show the entire run."
      aria-label={`Window: ${windowTitle(window)}. Show the entire run`}
    >
      {windowTitle(window)} ×
    </button>
  );
}

const TITLES = {
  live: "Connected: new data appears automatically. Click to pause.",
  paused: "Paused: the page is not updating. Click to resume.",
  disconnected: "Disconnected: the page keeps its data and reconnects automatically.",
} as const;

function LiveBadge() {
  const { state, latestNs, pause, resume } = useLive();
  const age = useAge(latestNs);
  return (
    <button
      type="button"
      className={`live-badge live-${state}`}
      onClick={() => (state === "paused" ? resume() : pause())}
      title={TITLES[state]}
      aria-label={`${state}. ${TITLES[state]}`}
      data-live={state}
    >
      <span className="dot" />
      {state}
      {state === "live" && age !== null && <span className="muted">{age}</span>}
    </button>
  );
}

/** The age of the newest data, once it is notable. */
function useAge(latestNs: number): string | null {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = window.setInterval(() => setNow(Date.now()), 1000);
    return () => window.clearInterval(timer);
  }, []);
  const ageMs = now - latestNs / 1e6;
  return latestNs === 0 || ageMs < 5000 ? null : `last data ${formatAgo(latestNs, now * 1e6)}`;
}
