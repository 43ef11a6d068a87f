import { type ReactNode, memo, useCallback, useMemo } from "react";
import type { SessionConditions } from "../api";
import { OpenWorkTable } from "../components/OpenWorkTable";
import { Loading } from "../components/Loading";
import { Panel } from "../components/Panel";
import { SearchBox } from "../components/SearchBox";
import { Choice, Select, labeled } from "../components/Select";
import { counted, formatCount } from "../units";
import { parseSort, sortText } from "../components/Table";
import { reportFacts } from "../reportFacts";
import { ENDED_STATUSES } from "../sessionStatus";
import { useUrlState } from "../url";
import { useAnswer } from "../useQuery";
import { type StepsWindow, useWindow } from "../window";
import type { ViewProps } from ".";
import { Distributions, LatencyScatter, totalOf } from "./sessions/SessionCharts";
import { Groups } from "./sessions/Groups";
import { StepDurations } from "./sessions/StepDurations";
import { SessionPanel } from "./sessions/SessionPanel";
import { GANTT_AXES, SORTABLE, SessionTable } from "./sessions/SessionTable";
import { useSessionSample, useSessionWindow } from "./sessions/data";
import { parseSearch, withCondition } from "./sessions/search";
import "./views.css";
import { ErrorLine } from "../components/ErrorLine";

const STATUSES = [
  { value: "", label: "any status" },
  { value: "open", label: "open" },
  { value: "bad", label: "ended badly" },
  ...ENDED_STATUSES.map((status) => ({ value: status, label: status })),
];

const TIME_BY = labeled({ submission: "By time", step: "By step" });

const SHOWN = labeled({ samples: "Samples", groups: "Groups" });

/** Sessions, one by one or as the groups in which their rewards are compared. */
export default function Sessions({ run }: ViewProps) {
  const [shown, setShown] = useUrlState("show", "samples", ["samples", "groups"]);
  const choice =
    reportFacts() === null ? (
      <Choice label="Show" value={shown} options={SHOWN} onChange={(one) => setShown(one, "push")} />
    ) : null;
  if (shown === "groups" && reportFacts() === null)
    return (
      <div className="view">
        <div className="toolbar">{choice}</div>
        <Groups run={run} />
      </div>
    );
  return <Samples run={run} choice={choice} />;
}

/** Which sessions are stuck, which are slow, where their time goes. */
function Samples({ run, choice }: ViewProps & { choice: ReactNode }) {
  // For a running job, show the newest sessions first; for a finished one, the slowest.
  const isReport = reportFacts() !== null;
  const [search, setSearch] = useUrlState("search", "");
  const [order, setOrder] = useUrlState("sort", isReport ? "-total_s" : "-submit_ts");
  const [selected, setSelected] = useUrlState("session", "");
  const [axis, setAxis] = useUrlState("axis", "submit", ["submit", "clock"]);
  const [areChartsShown, setAreChartsShown] = useUrlState("charts", true);
  const [isLogarithmic, setIsLogarithmic] = useUrlState("log", isReport);
  const { steps } = useWindow(run);
  const { query: typed, problem } = parseSearch(search);
  const query = useMemo(() => withinSteps(typed, steps), [search, steps]);
  const asked = parseSort(order);
  const sort = SORTABLE.includes(asked.key) ? asked : parseSort("-submit_ts");
  const sessions = useSessionWindow(run, query, sort);
  const status = /(?:^|\s)status:(\S+)/i.exec(search)?.[1] ?? "";
  const showStep = useCallback((step: number) => setSearch(`step:${step}`, "push"), [setSearch]);
  const isKnown = STATUSES.some((one) => one.value === status);

  return (
    <div className="view">
      <div className="toolbar">
        {choice}
        <SearchBox
          value={search}
          onChange={setSearch}
          label="Search sessions"
          placeholder="step:7 status:failed"
          hint="step:7 status:failed reward:<0.1 tokens:>1000 turns:>3 rank:3 longer:2s task:… session:…"
        />
        <Select
          label="Status"
          isLabelHidden
          value={isKnown ? status : ""}
          options={STATUSES}
          onChange={(value) => setSearch(withCondition(search, "status", value === "" ? null : value))}
        />
        <span className="muted" role="status">
          {counted(sessions.total, "session")}
        </span>
        {problem !== null && <span className="warning">{problem}</span>}
        <span className="spacer" />
        <Choice label="Axis of the phases" value={axis} options={GANTT_AXES} onChange={setAxis} />
        <button type="button" aria-pressed={areChartsShown} onClick={() => setAreChartsShown(!areChartsShown)}>
          Charts
        </button>
      </div>
      <ErrorLine text={sessions.error} />
      {areChartsShown && (
        <Charts
          run={run}
          search={search}
          isLogarithmic={isLogarithmic}
          setIsLogarithmic={setIsLogarithmic}
          onPick={setSelected}
          onStep={showStep}
        />
      )}
      <div className="beside">
        <section className="panel table-panel">
          <SessionTable
            sessions={sessions}
            sort={sort}
            onSort={(next) => setOrder(sortText(next))}
            selected={selected}
            onOpen={(session) => setSelected(session.session_id, selected === "" ? "push" : "replace")}
            axis={axis}
            isNarrow={selected !== ""}
            hasSearch={search.trim() !== ""}
          />
        </section>
        {selected !== "" && (
          <SessionPanel key={selected} run={run} sessionId={selected} onClose={() => setSelected("")} />
        )}
      </div>
    </div>
  );
}

/** The sessions of the window that all views share, unless the search names steps. */
function withinSteps(query: SessionConditions, steps: StepsWindow | null): SessionConditions {
  if (steps === null || query.first_step !== undefined || query.last_step !== undefined) return query;
  return { ...query, first_step: steps.first, last_step: steps.last };
}

interface ChartsProps {
  run: string;
  search: string;
  isLogarithmic: boolean;
  setIsLogarithmic: (value: boolean) => void;
  onPick: (sessionId: string) => void;
  onStep: (step: number) => void;
}

/** Separate from the table, which re-renders while scrolling. */
const Charts = memo(function Charts({ run, search, isLogarithmic, setIsLogarithmic, onPick, onStep }: ChartsProps) {
  const [by, setBy] = useUrlState("by", "submission", ["submission", "step"]);
  const { steps } = useWindow(run);
  const query = withinSteps(parseSearch(search).query, steps);
  const sample = useSessionSample(run, query);
  const { data: parts, error } = useAnswer("sessions/durations", { run, ...query }, { everyMs: 10_000, keep: false });
  const total = totalOf(parts);
  const isPart = by === "submission" && sample !== undefined && total !== undefined && sample.length < total.count;
  return (
    <div className="grid session-charts">
      <div>
        <Distributions parts={parts} {...(error === undefined ? {} : { error })} />
      </div>
      <Panel
        title="Total time"
        value={isPart ? `${formatCount(sample.length)} of ${formatCount(total.count)} shown` : undefined}
        actions={
          <>
            <Choice label="Total time by" value={by} options={TIME_BY} onChange={setBy} />
            <button
              type="button"
              className="chip"
              aria-pressed={isLogarithmic}
              onClick={() => setIsLogarithmic(!isLogarithmic)}
            >
              log
            </button>
          </>
        }
      >
        {by === "step" ? (
          <StepDurations run={run} search={query} isLogarithmic={isLogarithmic} onStep={onStep} />
        ) : sample === undefined ? (
          <Loading />
        ) : (
          <LatencyScatter samples={sample} total={total} isLogarithmic={isLogarithmic} onPick={onPick} />
        )}
      </Panel>
      <Panel title="Suspect open work">
        <OpenWorkTable run={run} />
      </Panel>
    </div>
  );
});
