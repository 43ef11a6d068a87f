import { type ReactNode, useMemo } from "react";
import type { LogLine } from "../api";
import { Drawer } from "../components/Drawer";
import { EmptyState } from "../components/EmptyState";
import { type Fact, Facts, factsOf } from "../components/Facts";
import { Loading } from "../components/Loading";
import { levelClass } from "../components/LogLines";
import { SearchBox } from "../components/SearchBox";
import { Select } from "../components/Select";
import { type Column, Table } from "../components/Table";
import { ViewLink } from "../components/ViewLink";
import { useLive } from "../live";
import { processTitle } from "../processTitle";
import { formatClock, formatCount, formatDate, formatLevel, shorten, counted } from "../units";
import { useUrlState } from "../url";
import type { ViewProps } from ".";
import { timelineSpan, timelineWindow } from "./links";
import { type LineGroup, foldLines } from "../overview/groupLines";
import { LogHistogram } from "./logs/LogHistogram";
import { lineKey, useLogTail } from "./logs/tail";
import { type LogFilters, useLogFilters } from "./logs/useLogFilters";
import "./views.css";
import { ErrorLine } from "../components/ErrorLine";

const LEVELS = [
  { value: "0", label: "all levels" },
  { value: "20", label: "INFO and up" },
  { value: "30", label: "WARNING and up" },
  { value: "40", label: "ERROR and up" },
];
const FIRST_LINES = 500;
const MOST_LINES = 10_000;

/** A live tail of the log, newest first. */
export default function Logs({ run }: ViewProps) {
  const filters = useLogFilters(run);
  const [limit, setLimit] = useUrlState("lines", FIRST_LINES);
  const [selected, setSelected] = useUrlState("line", "");
  const [isFolded, setFolded] = useUrlState("fold", true);
  const tail = useLogTail(filters.query, Math.min(MOST_LINES, Math.max(1, limit)));
  const rows = useMemo(
    () => (isFolded ? foldLines(tail.lines) : tail.lines.map((line) => ({ line, count: 1, places: 1 }))),
    [tail.lines, isFolded],
  );
  const shown = useMemo(() => tail.lines.find((line) => keyInAddress(line) === selected), [tail.lines, selected]);
  return (
    <div className="view">
      <LogToolbar filters={filters} lines={tail.lines.length} isFolded={isFolded} onFold={setFolded}>
        {tail.hasMore && limit < MOST_LINES && (
          <button type="button" onClick={() => setLimit(Math.min(MOST_LINES, limit * 4))}>
            Older lines
          </button>
        )}
      </LogToolbar>
      <ErrorLine text={tail.error} />
      <LogHistogram query={filters.query} onSelect={filters.setTime} />
      <div className="beside">
        <section className="panel table-panel">
          <Table
            label="Logs"
            columns={COLUMNS}
            rows={rows}
            rowKey={({ line }) => keyInAddress(line)}
            keepsPlace
            selected={selected}
            onOpen={({ line }) => setSelected(keyInAddress(line))}
            rowClass={({ line }) => (line.level >= 40 ? "is-error-line" : undefined)}
            empty={tail.isLoading ? <Loading /> : <Nothing hasFilter={filters.isFiltered} />}
          />
        </section>
        {shown !== undefined && <LinePanel line={shown} onClose={() => setSelected("")} />}
      </div>
    </div>
  );
}

interface ToolbarProps {
  filters: LogFilters;
  /** The number of loaded lines. */
  lines: number;
  isFolded: boolean;
  onFold: (isFolded: boolean) => void;
  /** The button for older lines. */
  children: ReactNode;
}

function LogToolbar({ filters, lines, isFolded, onFold, children }: ToolbarProps) {
  const { state } = useLive();
  const { search, setSearch, level, setLevel } = filters;
  return (
    <div className="toolbar">
      <SearchBox value={search} onChange={setSearch} label="Search logs" placeholder="Search messages and fields" />
      <Select
        label="Level"
        isLabelHidden
        value={LEVELS.some((one) => one.value === level) ? level : "0"}
        options={LEVELS}
        onChange={setLevel}
      />
      {filters.filters.map(({ name, value, clear }) => (
        <button
          key={name}
          type="button"
          className="chip"
          onClick={clear}
          aria-label={`Remove the filter ${name}`}
          title="Remove this filter"
        >{`${name}: ${shorten(value, 40)} ×`}</button>
      ))}
      <button
        type="button"
        aria-pressed={isFolded}
        onClick={() => onFold(!isFolded)}
        title="Collapse consecutive lines that differ only in numbers into one line with a count"
      >
        Fold repeats
      </button>
      <span className="spacer" />
      <span
        className="muted"
        role="status"
      >{`${counted(lines, "line")}, newest first${state === "live" ? "" : ` (${state})`}`}</span>
      {children}
    </div>
  );
}

/** Short enough for an address: the time and the process. */
function keyInAddress(line: LogLine): string {
  let hash = 0;
  for (const character of lineKey(line)) hash = (Math.imul(hash, 31) + character.charCodeAt(0)) | 0;
  return `${(hash >>> 0).toString(36)}-${line.process_id}`;
}

function Nothing({ hasFilter }: { hasFilter: boolean }) {
  if (hasFilter) return <EmptyState title="No matching log lines" text="Remove a filter, or lower the level." />;
  return (
    <EmptyState
      title="No logs in this run"
      text="Send them with the run's telemetry; they are linked to their span, session and step:"
      code={
        'insight.log("warning", "the tool server is slow", tool="search")\n\nimport logging\nlogging.getLogger().addHandler(insight.InsightHandler())'
      }
    />
  );
}

const COLUMNS: readonly Column<LineGroup>[] = [
  {
    key: "time",
    title: "Time",
    width: "104px",
    render: ({ line }) => <span className="mono muted">{formatClock(line.time_ns, true)}</span>,
  },
  {
    key: "level",
    title: "Level",
    width: "84px",
    render: ({ line }) => <span className={`mono ${levelClass(line.level)}`}>{formatLevel(line.level)}</span>,
  },
  {
    key: "message",
    title: "Message",
    width: "minmax(240px, 1fr)",
    render: ({ line, count }) => (
      <span className="mono" title={shorten(line.message, 500)}>
        {count > 1 && <span className="badge">{`${formatCount(count)} ×`}</span>} {shorten(line.message, 500)}
      </span>
    ),
  },
  {
    key: "process",
    title: "Process",
    width: "110px",
    render: ({ line, places }) => (
      <span title={line.process_id}>{places > 1 ? `${formatCount(places)} processes` : processTitle(line)}</span>
    ),
  },
  { key: "step", title: "Step", width: "56px", align: "right", render: ({ line }) => formatCount(line.step) },
  {
    key: "links",
    title: "",
    width: "132px",
    render: ({ line }) => (
      <span className="row-links" onClick={(event) => event.stopPropagation()}>
        {line.span_id !== null && (
          <ViewLink view="timeline" state={spanOf(line, line.span_id)}>
            span
          </ViewLink>
        )}
        {line.session_id !== null && (
          <ViewLink view="sessions" state={{ session: line.session_id }}>
            session
          </ViewLink>
        )}
      </span>
    ),
  },
];

/** The timeline at the span of a line, with its lane in view. */
function spanOf(line: LogLine, spanId: string) {
  return { ...timelineSpan(spanId, line.time_ns - 1e9, line.time_ns + 1e9), lane: line.lane_id };
}

function LinePanel({ line, onClose }: { line: LogLine; onClose: () => void }) {
  const facts: Fact[] = [
    ["Time", formatDate(line.time_ns)],
    ["Logger", line.logger],
    [
      "Process",
      <ViewLink key="process" view="logs" state={{ process: line.process_id }}>
        {line.process_id}
      </ViewLink>,
    ],
    [
      "Role",
      line.role === "" ? null : (
        <ViewLink key="role" view="logs" state={{ role: line.role }}>
          {line.role}
        </ViewLink>
      ),
    ],
    [
      "Rank",
      line.rank === null ? null : (
        <ViewLink key="rank" view="logs" state={{ role: line.role, rank: line.rank }}>
          {formatCount(line.rank)}
        </ViewLink>
      ),
    ],
    ["Lane", line.lane],
    [
      "Step",
      line.step === null ? null : (
        <ViewLink key="step" view="logs" state={{ step: line.step }}>
          {formatCount(line.step)}
        </ViewLink>
      ),
    ],
    [
      "Session",
      line.session_id === null ? null : (
        <ViewLink key="session" view="sessions" state={{ session: line.session_id }}>
          {line.session_id}
        </ViewLink>
      ),
    ],
    [
      "Span",
      line.span_id === null ? null : (
        <ViewLink key="span" view="timeline" state={spanOf(line, line.span_id)}>
          {line.span_id}
        </ViewLink>
      ),
    ],
    [
      "Timeline",
      <ViewLink
        key="timeline"
        view="timeline"
        state={timelineWindow(line.time_ns - 2e9, line.time_ns + 2e9, { lane: line.lane_id })}
      >
        what else happened at this time
      </ViewLink>,
    ],
  ];
  return (
    <Drawer title={<span className={levelClass(line.level)}>{formatLevel(line.level)}</span>} onClose={onClose}>
      <pre>{line.message}</pre>
      <Facts facts={facts} />
      {Object.keys(line.attributes).length > 0 && (
        <section>
          <h3>Fields</h3>
          <Facts facts={factsOf(line.attributes)} />
        </section>
      )}
    </Drawer>
  );
}
