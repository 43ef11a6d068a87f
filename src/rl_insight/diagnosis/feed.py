"""Reads a run from the store: the whole of it in order, or what has arrived since the last time.

Both hand out the same moments, which is why a stored run is diagnosed exactly as it was while it ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
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
from rl_insight.schema.signs_of_life import LAST_SEEN_EVENT, LastSeen
from rl_insight.schema.stacks import STACKS_EVENT
from rl_insight.store.queries.base import Cursor

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
_OF_INTEREST = "(segment IN ('state_interval', 'state_nested', 'phase') OR depth = 0)"
_SPANS = f"""
    SELECT {_SPAN_FIELDS} FROM span_data JOIN {_ALIGNED} USING (lane_id)
    WHERE {{range}} AND {_OF_INTEREST}
"""  # noqa: S608  (constants)
_OPEN_SPANS = f"""
    SELECT {_SPAN_FIELDS} FROM open_span_data JOIN {_ALIGNED} USING (lane_id)
    WHERE {_OF_INTEREST}
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
_TOLD = "config|alert|curriculum|annotation|(^|[^a-z])(stage|change|schedule)"
"""Names of events in which a run tells what it changes."""
_EVENTS = f"""
    SELECT time_ns + clock_offset_ns, process, name, step, coalesce(attributes, '')
    FROM event_data JOIN {_ALIGNED} USING (lane_id)
    WHERE {{range}} AND (name <> '{CONFIG_EVENT}' OR step IS NOT NULL)
        AND (regexp_matches(name, '{_TOLD}', 'i') OR name = '{STACKS_EVENT}')
"""  # noqa: S608  (constants)
_ERRORS = f"""
    SELECT time_ns + clock_offset_ns, process, 'error', step, message
    FROM log_data JOIN {_ALIGNED} USING (lane_id) WHERE {{range}} AND level >= 40
"""  # noqa: S608  (constants)
_LAST_SEEN = f"""
    SELECT process, max(time_ns + clock_offset_ns), arg_max(coalesce(attributes, ''), time_ns)
    FROM event_data JOIN {_ALIGNED} USING (lane_id) WHERE name = $name GROUP BY process
"""  # noqa: S608  (constants)
_BY_ROW: Final = "{table}.rowid >= $first AND {table}.rowid < $last"
_BY_TIME: Final = "{column} + clock_offset_ns > $first AND {column} + clock_offset_ns <= $last"


@dataclass(slots=True)
class Moment:
    """Everything that happened since the moment before, and what runs now."""

    as_of_ns: int
    spans: SpanTable | None
    """Those that ended, in the order of their ends; None before there are any."""
    open_spans: list[SpanRow]
    sessions: list[SessionRow]
    open_sessions: list[SessionRow]
    samples: list[SampleRow]
    marks: list[MarkRow]
    events: list[EventRow]
    losses: list[LossRow]


@dataclass(slots=True)
class Frontier:
    """When the first and the last thing of a run were recorded."""

    first_ns: int
    last_ns: int


class Feed(RunCatalog):
    """What both ways of reading share: the catalog, the rows in flight, and moments made of them."""

    def __init__(self, cursor: Cursor) -> None:
        super().__init__()
        self._cursor = cursor
        self._spans = RunningSpans()
        self._sessions = Running()
        self._samples: Instants[SampleRow] = Instants()
        self._marks: Instants[MarkRow] = Instants()
        self._events: Instants[EventRow] = Instants()
        self.marks_tell_steps = True
        """False once spans tell the steps of the run: marks then say only that something was recorded."""
        self._open_spans: list[SpanRow] = []
        self._open_sessions: list[SessionRow] = []

    def moment(self, as_of_ns: int) -> Moment:
        """Return what happened up to a moment, since the one before."""
        spans = self._spans.advance(as_of_ns)
        sessions = self._sessions.advance(as_of_ns)
        oldest = as_of_ns - _OPEN_AFTER_NS
        begun = self._spans.open(oldest)
        running = [] if begun is None else begun.rows(self.names)
        running += [row for row in self._open_spans if row.start_ns <= oldest]
        pending = [row for row in (*self._sessions.open(), *self._open_sessions) if row.start_ns <= oldest]
        return Moment(
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

    def _add_spans(self, condition: str, bounds: dict[str, int]) -> SpanTable:
        spans = read_spans(self._cursor.execute(_SPANS.format(range=condition), bounds).fetchnumpy())
        self._spans.add(spans)
        return spans

    def _read_open(self) -> None:
        self._open_spans = read_spans(self._cursor.execute(_OPEN_SPANS).fetchnumpy()).rows(self.names)
        pending = "finalized_ts IS NULL AND status = 'pending'"
        self._open_sessions = [self._session(row) for row in self._session_rows(pending, {})]

    def _add_events(self, sql: str, condition: str, bounds: dict[str, int]) -> None:
        rows = self._cursor.execute(sql.format(range=condition), bounds).fetchall()
        self._events.add([EventRow(*row) for row in rows])

    def _session_rows(self, condition: str, bounds: Mapping[str, float]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._cursor.execute(_SESSIONS.format(range=condition), bounds).fetchall()
        return found

    def _add_samples(self, condition: str, bounds: dict[str, int]) -> None:
        # As arrays: most samples are of no interest to rules, and making rows of all of them takes far longer.
        found = self._cursor.execute(_SAMPLES.format(range=condition), bounds).fetchnumpy()
        series = found["series_id"]
        known = self.is_known[series]
        times, values, steps = (found[name][known].tolist() for name in ("time_ns", "value", "step"))
        has_step, numbers = found["has_step"][known].tolist(), series[known].tolist()
        self._samples.add(
            [
                SampleRow(time_ns, number, value, step if is_told else None)
                for time_ns, number, value, step, is_told in zip(times, numbers, values, steps, has_step, strict=True)
            ]
        )
        self._marks.add(self._find_marks(found))

    def _find_marks(self, found: dict[str, Any]) -> list[MarkRow]:
        """Return what training code recorded: one mark for each process, step and second, or just for each second."""
        plain = self.is_plain[found["series_id"]]
        owners = self.owner_of_series[found["series_id"][plain]]
        times, steps, has_step = (found[name][plain] for name in ("time_ns", "step", "has_step"))
        if not times.size:
            return []
        steps = np.where(has_step & self.marks_tell_steps, steps, NO_STEP)
        owners = owners if self.marks_tell_steps else np.full_like(owners, owners[0])
        # A process and a second as one number: sorting by one column less halves the time that this takes.
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

    def _session(self, row: tuple[Any, ...]) -> SessionRow:
        submit, finalized, *rest = row
        end = NEVER if finalized is None else int(finalized * SECOND)
        return SessionRow(end, int(submit * SECOND), *rest)


class ReplayFeed(Feed):
    """The whole of a run, read in slices of recorded time."""

    def __init__(self, cursor: Cursor) -> None:
        super().__init__(cursor)
        self.update(self._cursor)
        self._read_signs_of_life()
        self._read_open()
        self._read_until = -1
        self.frontier = find_frontier(cursor)

    def _read_signs_of_life(self) -> None:
        """Take from an export's events when its processes were last heard: its import says nothing of it."""
        found = self._cursor.execute(_LAST_SEEN, {"name": LAST_SEEN_EVENT}).fetchall()
        for number, last_seen_ns, text in found:
            process = self.processes[number]
            if not process.is_live:
                process.last_seen_ns, process.is_live = last_seen_ns, True
                process.ended, process.heartbeat_s = _read_last_seen(text)

    def moment(self, as_of_ns: int) -> Moment:
        """Return what happened up to a moment, since the one before."""
        while self._read_until < as_of_ns:
            first = max(self._read_until, self.frontier.first_ns - 1)
            self._read_slice(first, max(first + _SLICE_NS, self.frontier.first_ns))
        return super().moment(as_of_ns)

    def begin_at(self, moment_ns: int) -> None:
        """Leave out what happened before a moment."""
        self._read_until = max(self._read_until, moment_ns)

    def last_moment(self) -> Moment:
        """Return the last minutes of the run as one moment: what they cost does not grow with the run."""
        self.begin_at(self.frontier.last_ns - _SLICE_NS)
        return self.moment(self.frontier.last_ns)

    def _read_slice(self, first: int, last: int) -> None:
        self._read_until = last
        bounds = {"first": first, "last": last}
        self._add_spans(_BY_TIME.format(column="start_ns"), bounds)
        self._add_samples(_BY_TIME.format(column="time_ns"), bounds)
        window = "submit_ts > $first / 1e9 AND submit_ts <= $last / 1e9 AND finalized_ts IS NOT NULL"
        self._sessions.add([self._session(row) for row in self._session_rows(window, bounds)])
        for sql in (_EVENTS, _ERRORS):
            self._add_events(sql, _BY_TIME.format(column="time_ns"), bounds)


def _read_last_seen(text: str) -> tuple[bool, float]:
    """Return whether a process ended in order, and its heartbeat; the defaults for what cannot be read."""
    try:
        told = msgspec.json.decode(text, type=LastSeen)
    except msgspec.MsgspecError:
        told = LastSeen()
    return told.final, told.heartbeat_s


class LiveFeed(Feed):
    """What has arrived since the last `poll`."""

    _TABLES: Final = ("span_data", "sample_data", "event_data", "log_data")

    def __init__(self, cursor: Cursor) -> None:
        super().__init__(cursor)
        self._rows = dict.fromkeys(self._TABLES, 0)
        self._finalized: dict[str, float] = {}
        self._finalized_until = 0.0
        self.newest_ns = 0
        """The end of the latest thing that was read."""
        self.first_ns = 0
        """The start of the first thing that was read."""
        self.has_more = False
        """Whether more rows wait than one poll reads."""

    def poll(self, cursor: Cursor) -> None:
        """Read what is new, at most a certain number of rows."""
        self._cursor = cursor
        self.update(self._cursor)
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
        # Rows are never deleted, so the largest row id counts them: the store's metadata answers at once.
        ((count,),) = self._cursor.execute(f"SELECT count(*) FROM {table}").fetchall()  # noqa: S608  (constants)
        if count <= first:
            return None
        last = min(count, first + _MAX_ROWS)
        self.has_more = self.has_more or last < count
        self._rows[table] = last
        return {"first": first, "last": last}

    def _add_spans(self, condition: str, bounds: dict[str, int]) -> SpanTable:
        spans = super()._add_spans(condition, bounds)
        if spans.size:
            self._note(int(spans.start_ns.min()), int(spans.end_ns.max()))
        return spans

    def _note(self, first_ns: int, last_ns: int) -> None:
        self.first_ns = min(self.first_ns or first_ns, first_ns)
        self.newest_ns = max(self.newest_ns, last_ns)

    def _add_samples(self, condition: str, bounds: dict[str, int]) -> None:
        super()._add_samples(condition, bounds)
        if marks := self._marks.waiting():
            self._note(marks[0].time_ns, marks[-1].last_ns)

    def _read_sessions(self) -> None:
        """Read the sessions that ended since; some are told late, so the last minutes are looked at again."""
        since = self._finalized_until - 120.0
        rows = self._session_rows("finalized_ts > $since", {"since": since})
        new = [row for row in rows if self._finalized.get(row[2]) is None]
        for row in new:
            self._finalized[row[2]] = row[1]
            self._finalized_until = max(self._finalized_until, row[1])
        if len(self._finalized) > 100_000:
            oldest = self._finalized_until - 300.0
            self._finalized = {one: moment for one, moment in self._finalized.items() if moment > oldest}
        self._sessions.add([self._session(row) for row in new])


_FRONTIER = """
    SELECT min(first_ns), max(last_ns) FROM (
        SELECT min(start_ns + clock_offset_ns) AS first_ns, max(start_ns + greatest(duration_ns, 0) + clock_offset_ns)
            AS last_ns
        FROM span_data JOIN {aligned} USING (lane_id)
        UNION ALL
        SELECT min(start_ns + clock_offset_ns), max(start_ns + clock_offset_ns)
        FROM open_span_data JOIN {aligned} USING (lane_id)
        UNION ALL
        SELECT min(time_ns + clock_offset_ns), max(time_ns + clock_offset_ns)
        FROM sample_data JOIN series USING (series_id) JOIN processes USING (process)
        UNION ALL
        SELECT (min(submit_ts) * 1e9)::BIGINT, (max(greatest(submit_ts, finalized_ts)) * 1e9)::BIGINT FROM sessions
    )
"""


def find_frontier(cursor: Cursor) -> Frontier:
    """Return when a run's first and last records are; both 0 for an empty run."""
    ((first, last),) = cursor.execute(_FRONTIER.format(aligned=_ALIGNED)).fetchall()
    return Frontier(first or 0, last or 0)
