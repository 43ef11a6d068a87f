import { useMemo } from "react";
import type { Session } from "../../api";
import { EmptyState } from "../../components/EmptyState";
import { Loading } from "../../components/Loading";
import type { Option } from "../../components/Select";
import { LongText } from "../../components/LongText";
import { StatusBadge } from "../../components/StatusBadge";
import { figure, text } from "../../components/columns";
import { type Column, type Sort, VirtualTable } from "../../components/Table";
import { nowMs } from "../../reportFacts";
import { PENDING } from "../../sessionStatus";
import { formatClock, formatCount, formatNumber, formatSeconds } from "../../units";
import { PhaseAxis, PhaseBars } from "./PhaseBars";
import type { SessionWindow } from "./data";
import { type GanttAxis, axisOf, extentOf } from "./gantt";

interface Props {
  sessions: SessionWindow;
  sort: Sort;
  onSort: (sort: Sort) => void;
  selected: string;
  onOpen: (session: Session) => void;
  axis: GanttAxis;
  /** Next to an open panel there is room only for the most important columns. */
  isNarrow: boolean;
  hasSearch: boolean;
}

/** All sessions, however many; the last column is a Gantt chart of the visible rows. */
export function SessionTable({ sessions, sort, onSort, selected, onOpen, axis, isNarrow, hasSearch }: Props) {
  const [first, last] = sessions.visible;
  const now = nowMs() / 1000;
  const range = axisOf(sessions.between(first, last), axis, now);
  const columns = useMemo(() => (isNarrow ? COLUMNS.filter((column) => NARROW.has(column.key)) : COLUMNS), [isNarrow]);
  const gantt: Column<Session> = {
    key: "phases",
    title: <PhaseAxis axis={axis} range={range} />,
    width: "minmax(84px, 3fr)",
    render: (session) => <PhaseBars session={session} axis={axis} range={range} now={now} />,
  };
  return (
    <VirtualTable
      label="Sessions"
      columns={withGantt(columns, gantt)}
      count={sessions.total}
      rowAt={sessions.rowAt}
      rowKey={(session) => session.session_id}
      sort={sort}
      onSort={onSort}
      selected={selected}
      onOpen={onOpen}
      onVisible={sessions.onVisible}
      empty={sessions.isLoading ? <Loading /> : <Nothing hasSearch={hasSearch} />}
    />
  );
}

function Nothing({ hasSearch }: { hasSearch: boolean }) {
  if (hasSearch) return <EmptyState title="No matching sessions" text="Remove a condition, or change the search." />;
  return (
    <EmptyState
      title="No sessions in this run"
      text="A session is one sample of a task, from submission to end. Wrap the rollout in one:"
      code={
        'async with insight.session(task_id=item.id, step=step) as session:\n    async with insight.phase("generate"):\n        ...\n    session.finalize("accepted", reward=1.0)'
      }
    />
  );
}

/** The chart is right after the total, so that it is visible on small screens too. */
function withGantt(columns: readonly Column<Session>[], gantt: Column<Session>): Column<Session>[] {
  const place = columns.findIndex((column) => column.key === "total_s") + 1;
  return [...columns.slice(0, place), gantt, ...columns.slice(place)];
}

const NARROW = new Set(["session_id", "status", "total_s"]);

function OpenFor({ session }: { session: Session }) {
  const now = nowMs() / 1000;
  const [start, end] = extentOf(session, now);
  return <span className="warning" title="Open until now">{`${formatSeconds(end - start)} …`}</span>;
}

const COLUMNS: readonly Column<Session>[] = [
  {
    key: "session_id",
    title: "Session",
    width: "minmax(98px, 1fr)",
    isSortable: true,
    render: (session) => <LongText className="mono" text={session.session_id} />,
  },
  text("task_id", "Task", "minmax(108px, 1fr)", (session) => session.task_id, {
    render: (session) => <LongText text={session.task_id ?? "–"} />,
  }),
  {
    key: "status",
    title: "Status",
    width: "104px",
    isSortable: true,
    render: (session) => (
      <span title={session.reason ?? ""}>
        <StatusBadge status={session.status ?? PENDING} />
      </span>
    ),
  },
  figure("step", "Step", "56px", (session) => session.step, formatCount),
  figure("reward", "Reward", "62px", (session) => session.reward, formatNumber),
  figure("total_s", "Total", "114px", (session) => session.total_s, formatSeconds, {
    hint: "From submission to the end; until now for an open session",
    render: (session) => (session.status === PENDING ? <OpenFor session={session} /> : formatSeconds(session.total_s)),
  }),
  figure("queue_wait_s", "Queue", "86px", (session) => session.queue_wait_s, formatSeconds, {
    hint: "From submission until it was queued",
  }),
  figure("generate_s", "Generate", "86px", (session) => session.generate_s, formatSeconds, {
    hint: "At least one generation was running",
  }),
  figure("toolcall_s", "Tools", "86px", (session) => session.toolcall_s, formatSeconds, {
    hint: "At least one tool call was running",
  }),
  figure("tokens", "Tokens", "70px", (session) => session.tokens, formatCount),
  figure("turns", "Turns", "54px", (session) => session.turns, formatCount, {
    hint: "The counter of that name, or the number of generations",
  }),
  figure("rank", "Rank", "50px", (session) => session.rank, String, {
    render: (session) => <span title={session.role ?? ""}>{session.rank ?? "–"}</span>,
  }),
  text("model_version", "Version", "64px", (session) => session.model_version),
  text("reason", "Reason", "minmax(60px, 1fr)", (session) => session.reason),
  {
    key: "submit_ts",
    title: "Submitted",
    width: "86px",
    isSortable: true,
    render: (session) => (session.submit_ts == null ? "–" : formatClock(session.submit_ts * 1e9)),
  },
];

/** Columns that the server can sort by. */
export const SORTABLE = COLUMNS.map((column) => column.key);

/** The axes of the Gantt column, for the toolbar. */
export const GANTT_AXES: readonly Option<GanttAxis>[] = [
  { value: "submit", label: "From submission" },
  { value: "clock", label: "On the clock" },
];
