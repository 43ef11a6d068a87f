"""Reads a run from the store: all of it in order, or the records that have arrived since the last time.

Both return the same ticks, so replaying a stored run gives the same diagnosis as watching it live.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rl_insight.diagnosis.catalog import RunCatalog
from rl_insight.diagnosis.rows import (
    NEVER,
    SECOND,
    EventRow,
    Instants,
    LossRow,
    MarkRow,
    Running,
    SampleRow,
    SessionRow,
    SpanRow,
)
from rl_insight.diagnosis.span_table import NO_STEP, SEGMENTS, RunningSpans, SpanTable, read_spans
from rl_insight.schema.names import CONFIG_EVENT
from rl_insight.schema.stacks import STACKS_EVENT
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.process_ends import last_reports
from rl_insight.store.queries.step_counters import OF_INTEREST

_SLICE_NS: Final = 300 * SECOND
_MAX_ROWS: Final = 200_000
_OPEN_AFTER_NS: Final = SECOND

_ALIGNED = "(SELECT lane_id, process, clock_offset_ns FROM lanes JOIN processes USING (process))"
_SEGMENT_CODES = " ".join(f"WHEN '{name}' THEN {code}" for code, name in enumerate(SEGMENTS[:-1]))
_SPAN_FIELDS = f"""
    CASE WHEN duration_ns IS NULL OR duration_ns < 0 THEN {NEVER} ELSE start_ns + clock_offset_ns + duration_ns END
        AS end_ns,
    start_ns + clock_offset_ns AS start_ns, span_id, lane_id, coalesce(name_id + 1, 0) AS name_id,
    CASE segment {_SEGMENT_CODES} ELSE {len(SEGMENTS) - 1} END::TINYINT AS segment, coalesce(step, {NO_STEP}) AS step,
    coalesce(status = 'error', FALSE) AS failed, error, session_id,
    CASE WHEN segment = 'phase' AND contains(attributes, '"tool') AND json_valid(attributes)
        THEN coalesce(json_extract_string(attributes, '$.tool'), json_extract_string(attributes, '$.tool_name')) END
        AS tool,
    coalesce(CASE WHEN segment = 'phase' AND contains(attributes, '"tokens"') AND json_valid(attributes)
        THEN try_cast(json_extract_string(attributes, '$.tokens') AS DOUBLE) END, 'nan'::DOUBLE) AS tokens,
    depth
"""
_SPANS = f"""
    SELECT {_SPAN_FIELDS} FROM span_data JOIN {_ALIGNED} USING (lane_id)
    WHERE {{range}} AND {OF_INTEREST}
"""  # noqa: S608  (constants)
_OPEN_SPANS = f"""
    SELECT {_SPAN_FIELDS} FROM open_span_data JOIN {_ALIGNED} USING (lane_id)
    WHERE {OF_INTEREST}
"""  # noqa: S608  (constants)
_SESSIONS = """
    SELECT submit_ts, finalized_ts, session_id, task_id, process_id, role, rank, status, reason, step, model_version,
        reward, tokens, generate_s, reward_s, toolcall_s
    FROM sessions WHERE submit_ts IS NOT NULL AND {range}
"""
_SAMPLES = """
    SELECT time_ns + clock_offset_ns AS time_ns, series_id, value, step IS NOT NULL AS has_step,
        coalesce(step, 0) AS step
    FROM sample_data JOIN series USING (series_id) JOIN processes USING (process) WHERE {range}
"""
_CHANGE_EVENTS = "config|alert|curriculum|annotation|(^|[^a-z])(stage|change|schedule)"
"""Names of events with which a run reports a change."""
_EVENTS = f"""
    SELECT time_ns + clock_offset_ns, process, name, step, coalesce(attributes, '')
    FROM event_data JOIN {_ALIGNED} USING (lane_id)
    WHERE {{range}} AND (name <> '{CONFIG_EVENT}' OR step IS NOT NULL)
        AND (regexp_matches(name, '{_CHANGE_EVENTS}', 'i') OR name = '{STACKS_EVENT}')
"""  # noqa: S608  (constants)
_ERRORS = f"""
    SELECT time_ns + clock_offset_ns, process, 'error', step, message
    FROM log_data JOIN {_ALIGNED} USING (lane_id) WHERE {{range}} AND level >= 40
"""  # noqa: S608  (constants)
_EXTENT = f"""
    SELECT min(first_ns), max(last_ns) FROM (
        SELECT min(start_ns + clock_offset_ns) AS first_ns, max(start_ns + greatest(duration_ns, 0) + clock_offset_ns)
            AS last_ns
        FROM span_data JOIN {_ALIGNED} USING (lane_id)
        UNION ALL
        SELECT min(start_ns + clock_offset_ns), max(start_ns + clock_offset_ns)
        FROM open_span_data JOIN {_ALIGNED} USING (lane_id)
        UNION ALL
        SELECT min(time_ns + clock_offset_ns), max(time_ns + clock_offset_ns)
        FROM sample_data JOIN series USING (series_id) JOIN processes USING (process)
        UNION ALL
        SELECT (min(submit_ts) * 1e9)::BIGINT, (max(greatest(submit_ts, finalized_ts)) * 1e9)::BIGINT FROM sessions
    )
"""  # noqa: S608  (constants)
_BY_ROW: Final = "{table}.rowid >= $first AND {table}.rowid < $last"
_BY_TIME: Final = "{column} + clock_offset_ns > $first AND {column} + clock_offset_ns <= $last"


@dataclass(slots=True)
class Tick:
    """Everything that happened since the previous tick, and what is running now."""

    as_of_ns: int
    spans: SpanTable | None
    """Those that ended, ordered by their ends; None before there are any."""
    open_spans: list[SpanRow]
    sessions: list[SessionRow]
    open_sessions: list[SessionRow]
    samples: list[SampleRow]
    marks: list[MarkRow]
    events: list[EventRow]
    losses: list[LossRow]


class Feed(RunCatalog):
    """The base of both readers: the catalog, the rows in flight, and the ticks built from them."""

    _cursor: Cursor

    def __init__(self) -> None:
        super().__init__()
        self._spans = RunningSpans()
        self._sessions = Running()
        self._samples: Instants[SampleRow] = Instants()
        self._marks: Instants[MarkRow] = Instants()
        self._events: Instants[EventRow] = Instants()
        self.marks_define_steps = True
        """False once spans define the steps of the run: marks then show only that something was recorded."""
        self._open_spans: list[SpanRow] = []
        self._open_sessions: list[SessionRow] = []
        self.first_ns = self.newest_ns = 0
        """The start of the first record, and the end of the latest one."""

    def tick(self, as_of_ns: int) -> Tick:
        """Return what happened since the previous tick."""
        spans = self._spans.advance(as_of_ns)
        sessions = self._sessions.advance(as_of_ns)
        oldest = as_of_ns - _OPEN_AFTER_NS
        begun = self._spans.open(oldest)
        running = [] if begun is None else begun.rows(self.names)
        running += [row for row in self._open_spans if row.start_ns <= oldest]
        pending = [row for row in (*self._sessions.open(), *self._open_sessions) if row.start_ns <= oldest]
        return Tick(
            as_of_ns,
            spans,
            running,
            sessions,
            pending,
            self._samples.advance(as_of_ns),
            self._marks.advance(as_of_ns),
            self._events.advance(as_of_ns),
            self.losses,
        )

    def _note(self, first_ns: int, last_ns: int) -> None:
        self.first_ns = min(self.first_ns or first_ns, first_ns)
        self.newest_ns = max(self.newest_ns, last_ns)

    def _add_spans(self, condition: str, bounds: dict[str, int]) -> None:
        spans = read_spans(self._cursor.execute(_SPANS.format(range=condition), bounds).fetchnumpy())
        self._spans.add(spans)
        if spans.size:
            self._note(int(spans.start_ns.min()), int(spans.end_ns.max()))

    def _read_open(self) -> None:
        self._open_spans = read_spans(self._cursor.execute(_OPEN_SPANS).fetchnumpy()).rows(self.names)
        self._open_sessions = self._sessions_where("finalized_ts IS NULL AND status = 'pending'", {})

    def _add_events(self, sql: str, condition: str, bounds: dict[str, int]) -> None:
        rows = self._cursor.execute(sql.format(range=condition), bounds).fetchall()
        self._events.add([EventRow(*row) for row in rows])

    def _sessions_where(self, condition: str, bounds: Mapping[str, float]) -> list[SessionRow]:
        rows = self._cursor.execute(_SESSIONS.format(range=condition), bounds).fetchall()
        return [
            SessionRow(NEVER if end is None else int(end * SECOND), int(start * SECOND), *rest)
            for start, end, *rest in rows
        ]

    def _add_samples(self, condition: str, bounds: dict[str, int]) -> None:
        # As arrays: rules use few of the samples, and converting all of them to rows takes far longer.
        found = self._cursor.execute(_SAMPLES.format(range=condition), bounds).fetchnumpy()
        series = found["series_id"]
        known = self.is_known[series]
        times, values, steps = (found[name][known].tolist() for name in ("time_ns", "value", "step"))
        has_step, numbers = found["has_step"][known].tolist(), series[known].tolist()
        self._samples.add(
            [
                SampleRow(time_ns, number, value, step if is_stepped else None)
                for time_ns, number, value, step, is_stepped in zip(
                    times, numbers, values, steps, has_step, strict=True
                )
            ]
        )
        marks = self._find_marks(found)
        self._marks.add(marks)
        if marks:
            self._note(min(mark.time_ns for mark in marks), max(mark.last_ns for mark in marks))

    def _find_marks(self, found: dict[str, Any]) -> list[MarkRow]:
        """Return the marks of training code: one per process, step and second, or just one per second."""
        plain = self.is_plain[found["series_id"]]
        owners = self.owner_of_series[found["series_id"][plain]]
        times, steps, has_step = (found[name][plain] for name in ("time_ns", "step", "has_step"))
        if not times.size:
            return []
        steps = np.where(has_step & self.marks_define_steps, steps, NO_STEP)
        owners = owners if self.marks_define_steps else np.full_like(owners, owners[0])
        # A process and a second packed into one number: one sort column less halves the time.
        seconds = owners << 33 | times // SECOND
        order = np.lexsort((steps, seconds))
        steps, seconds, owners, times = steps[order], seconds[order], owners[order], times[order]
        is_first = np.concatenate([[True], (seconds[1:] != seconds[:-1]) | (steps[1:] != steps[:-1])])
        places = np.flatnonzero(is_first)
        columns = (
            np.minimum.reduceat(times, places), owners[places], steps[places], np.maximum.reduceat(times, places)
        )  # fmt: skip
        return [
            MarkRow(first_ns, process, None if step == NO_STEP else step, last_ns)
            for first_ns, process, step, last_ns in zip(*(column.tolist() for column in columns), strict=True)
        ]


class ReplayFeed(Feed):
    """A stored run, read in slices of recorded time."""

    def __init__(self, cursor: Cursor) -> None:
        super().__init__()
        self._cursor = cursor
        self.update(cursor)
        self._read_signs_of_life()
        self._read_open()
        self._read_until = -1
        ((first_ns, last_ns),) = cursor.execute(_EXTENT).fetchall()
        self.first_ns, self.newest_ns = first_ns or 0, last_ns or 0

    def _read_signs_of_life(self) -> None:
        """Read when the processes of an export last reported, from its events: the import does not record it."""
        for number, last_seen_ns, said in last_reports(self._cursor):
            process = self.processes[number]
            if not process.is_live:
                process.last_seen_ns, process.is_live = last_seen_ns, True
                process.ended, process.heartbeat_s = said.final, said.heartbeat_s

    def tick(self, as_of_ns: int) -> Tick:
        """Return what happened since the previous tick."""
        while self._read_until < as_of_ns:
            first = max(self._read_until, self.first_ns - 1)
            self._read_slice(first, max(first + _SLICE_NS, self.first_ns))
        return super().tick(as_of_ns)

    def begin_at(self, time_ns: int) -> None:
        """Skip everything before a time."""
        self._read_until = max(self._read_until, time_ns)

    def last_tick(self) -> Tick:
        """Return the last minutes of the run as one tick, at a cost that does not grow with the run."""
        last_ns = self.newest_ns
        self.begin_at(last_ns - _SLICE_NS)
        return self.tick(last_ns)

    def _read_slice(self, first: int, last: int) -> None:
        self._read_until = last
        bounds = {"first": first, "last": last}
        self._add_spans(_BY_TIME.format(column="start_ns"), bounds)
        self._add_samples(_BY_TIME.format(column="time_ns"), bounds)
        window = "submit_ts > $first / 1e9 AND submit_ts <= $last / 1e9 AND finalized_ts IS NOT NULL"
        self._sessions.add(self._sessions_where(window, bounds))
        for sql in (_EVENTS, _ERRORS):
            self._add_events(sql, _BY_TIME.format(column="time_ns"), bounds)


class LiveFeed(Feed):
    """The records that have arrived since the last `poll`."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: Counter[str] = Counter()
        """The number of rows read from each table."""
        self._finalized_ns: dict[str, int] = {}
        self._finalized_until_ns = 0
        self.has_more = False
        """Whether there are more rows than one poll reads."""

    def poll(self, cursor: Cursor) -> None:
        """Read new rows, up to a limit."""
        self._cursor = cursor
        self.update(cursor)
        self._read_open()
        self.has_more = False
        if bounds := self._next_rows("span_data"):
            self._add_spans(_BY_ROW.format(table="span_data"), bounds)
        if bounds := self._next_rows("sample_data"):
            self._add_samples(_BY_ROW.format(table="sample_data"), bounds)
        for table, sql in (("event_data", _EVENTS), ("log_data", _ERRORS)):
            if bounds := self._next_rows(table):
                self._add_events(sql, _BY_ROW.format(table=table), bounds)
        self._read_sessions()

    def _next_rows(self, table: str) -> dict[str, int] | None:
        first = self._rows[table]
        # Rows are never deleted, so their count is the next row id, and the store's metadata has it.
        ((count,),) = self._cursor.execute(f"SELECT count(*) FROM {table}").fetchall()  # noqa: S608  (constants)
        if count <= first:
            return None
        last = min(count, first + _MAX_ROWS)
        self.has_more = self.has_more or last < count
        self._rows[table] = last
        return {"first": first, "last": last}

    def _read_sessions(self) -> None:
        """Read the sessions that ended since the last poll; some arrive late, so the last minutes are read again."""
        since = self._finalized_until_ns / SECOND - 120.0
        rows = self._sessions_where("finalized_ts > $since", {"since": since})
        new = {row.session_id: row for row in rows if row.session_id not in self._finalized_ns}
        self._finalized_ns |= {session_id: row.end_ns for session_id, row in new.items()}
        self._finalized_until_ns = max([self._finalized_until_ns, *(row.end_ns for row in new.values())])
        if len(self._finalized_ns) > 100_000:
            oldest = self._finalized_until_ns - 300 * SECOND
            self._finalized_ns = {one: end_ns for one, end_ns in self._finalized_ns.items() if end_ns > oldest}
        self._sessions.add(list(new.values()))
