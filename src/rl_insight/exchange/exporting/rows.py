"""The rows of a run, streamed: what exports are made of. Times are aligned across processes."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from rl_insight.schema.records import read_object
from rl_insight.schema.tables import Events, Logs, Spans
from rl_insight.store.queries import Cursor
from rl_insight.store.queries.base import conditions
from rl_insight.store.tables import PLACE, aligned

_FETCH_ROWS = 10_000


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a run: conditions add up."""

    start_ns: int | None = None
    end_ns: int | None = None
    """Exclusive. Spans that overlap the time are taken."""
    step: int | None = None
    session_id: str | None = None
    lane: str | None = None
    """The name of a lane; for a process's own lane, the process id or the role."""

    @property
    def has_metrics(self) -> bool:
        """Whether metrics belong to it: they are of no lane and no session."""
        return self.lane is None and self.session_id is None

    @property
    def given(self) -> dict[str, Any]:
        """The values of the conditions by the names that the queries use."""
        return {
            "from_ns": self.start_ns,
            "until_ns": self.end_ns,
            "step": self.step,
            "session_id": self.session_id,
            "lane": self.lane,
        }


class ExportedProcess(msgspec.Struct, frozen=True):
    """A process of the run."""

    number: int
    process_id: str
    run_id: str
    host: str
    pid: int
    project: str
    experiment_name: str
    role: str
    rank: int | None
    labels: dict[str, str]
    started_ns: int
    heartbeat_s: float


_make_type: Any = namedtuple  # noqa: PYI024  # the fields follow from the declarations of the tables
_PLACE_FIELDS = ("process", "lane_id")
_span_fields: Any = _make_type("_span_fields", (*_PLACE_FIELDS, *Spans.COLUMNS))
_event_fields: Any = _make_type("_event_fields", (*_PLACE_FIELDS, *Events.COLUMNS))
_log_fields: Any = _make_type("_log_fields", (*_PLACE_FIELDS, *Logs.COLUMNS))


class ExportedSpan(_span_fields):  # type: ignore[misc]
    """A span, as it was recorded."""

    __slots__ = ()


class ExportedEvent(_event_fields):  # type: ignore[misc]
    """An event, as it was recorded."""

    __slots__ = ()


class ExportedLog(_log_fields):  # type: ignore[misc]
    """A log line, as it was recorded."""

    __slots__ = ()


class ExportedSample(NamedTuple):
    """A value of a gauge or counter."""

    process: int
    series_id: int
    time_ns: int
    value: float
    step: int | None


class HistogramRow(NamedTuple):
    """A distribution."""

    process: int
    series_id: int
    time_ns: int
    step: int | None
    values: int
    sum: float
    min: float
    max: float
    codes: list[int]
    counts: list[int]


class ExportedSeries(msgspec.Struct, frozen=True):
    """A metric with its labels."""

    series_id: int
    process: int
    name: str
    kind: str
    documentation: str
    labels: dict[str, str]


_PROCESSES = """
    SELECT process, process_id, run_id, host, pid, project, experiment_name, role, rank, labels, started_ns, heartbeat_s
    FROM processes ORDER BY role, rank NULLS LAST, process_id
"""
_SPAN_COLUMNS = f"process, lane_id, {aligned(Spans)}, depth"
_SPANS = f"""
    SELECT * EXCLUDE (depth) FROM (
        SELECT {_SPAN_COLUMNS} FROM span_data {PLACE} JOIN names USING (name_id) WHERE {{where}}
        UNION ALL
        SELECT {_SPAN_COLUMNS} FROM open_span_data {PLACE} JOIN names USING (name_id) WHERE {{where}}
    ) ORDER BY {{order}}
"""  # noqa: S608  (constants)
_SPAN_COUNT = f"""
    SELECT (SELECT count(*) FROM span_data {PLACE} WHERE {{where}})
        + (SELECT count(*) FROM open_span_data {PLACE} WHERE {{where}})
"""  # noqa: S608  (constants)
# Parents on another lane, of and among the chosen spans.
_FAR_PARENTS = f"""
    WITH chosen AS (
        SELECT span_id, parent_id, trace_low, lane_id FROM span_data {PLACE} WHERE {{where}}
        UNION ALL SELECT span_id, parent_id, trace_low, lane_id FROM open_span_data {PLACE} WHERE {{where}}
    )
    SELECT DISTINCT child.parent_id FROM chosen AS child
    JOIN chosen AS parent ON child.parent_id = parent.span_id AND child.trace_low = parent.trace_low
    WHERE child.parent_id <> 0 AND child.lane_id <> parent.lane_id
"""  # noqa: S608  (constants)
_ORDERS = {
    "process": "process, start_ns, duration_ns DESC",
    # Parents before their children, also where both began at the same time.
    "lane": "lane_id, start_ns, depth, duration_ns DESC",
}
_EVENTS = (
    f"SELECT process, lane_id, {aligned(Events)} FROM event_data {PLACE} WHERE {{where}} ORDER BY process, time_ns"  # noqa: S608
)
_LOGS = f"SELECT process, lane_id, {aligned(Logs)} FROM log_data {PLACE} WHERE {{where}} ORDER BY process, time_ns"  # noqa: S608
_SERIES = "SELECT series_id, process, name, kind, documentation, labels FROM series ORDER BY series_id"
_SAMPLES = """
    SELECT process, series_id, time_ns + clock_offset_ns AS at_ns, value, step
    FROM sample_data JOIN series USING (series_id) JOIN processes USING (process) WHERE {where}
    ORDER BY process, at_ns
"""
_HISTOGRAMS = """
    SELECT process, series_id, time_ns + clock_offset_ns AS at_ns, step, count, sum, min, max, codes, counts
    FROM histogram_data JOIN series USING (series_id) JOIN processes USING (process) WHERE {where}
    ORDER BY process, at_ns
"""
_LOSSES = "SELECT process, kind, reason, count FROM losses"
_LANE = "(lane = $lane OR (lane IS NULL AND (process_id = $lane OR role = $lane)))"
_SPAN_FRAGMENTS = {
    "from_ns": "(duration_ns < 0 OR start_ns + clock_offset_ns + duration_ns >= $from_ns)",
    "until_ns": "start_ns + clock_offset_ns < $until_ns",
    "step": "step = $step",
    "session_id": "session_id = $session_id",
    "lane": _LANE,
}
_INSTANT_FRAGMENTS = _SPAN_FRAGMENTS | {
    "from_ns": "time_ns + clock_offset_ns >= $from_ns",
    "until_ns": "time_ns + clock_offset_ns < $until_ns",
}


def processes(cursor: Cursor) -> list[ExportedProcess]:
    """Return the processes, by role and rank."""
    names = ExportedProcess.__struct_fields__
    rows = (dict(zip(names, row, strict=True)) for row in cursor.execute(_PROCESSES).fetchall())
    return [ExportedProcess(**(row | {"labels": _texts(row["labels"])})) for row in rows]


def series(cursor: Cursor) -> dict[int, ExportedSeries]:
    """Return the series by their numbers."""
    names = ExportedSeries.__struct_fields__
    rows = (dict(zip(names, row, strict=True)) for row in cursor.execute(_SERIES).fetchall())
    return {row["series_id"]: ExportedSeries(**(row | {"labels": _texts(row["labels"])})) for row in rows}


def signs_of_life(cursor: Cursor) -> list[tuple[int, int, bool]]:
    """Return when each process was last heard, and whether it ended in order; imported ones carry that as an event."""
    return cursor.execute(
        "SELECT process, last_seen_ns, final FROM processes WHERE delay_ns IS NOT NULL ORDER BY process"
    ).fetchall()


def losses(cursor: Cursor) -> list[tuple[int, str, str, int]]:
    """Return process, kind, reason and count of what was lost."""
    found: list[tuple[int, str, str, int]] = cursor.execute(_LOSSES).fetchall()
    return found


def spans(cursor: Cursor, selection: Selection, order: str = "process") -> Iterator[ExportedSpan]:
    """Yield spans, ended and open, by process or by lane, then by start."""
    where, given = conditions(_SPAN_FRAGMENTS, selection.given)
    yield from map(ExportedSpan._make, _stream(cursor, _SPANS.format(where=where, order=_ORDERS[order]), given))


def count_spans(cursor: Cursor, selection: Selection) -> int:
    """Return how many spans there are, ended and open."""
    where, given = conditions(_SPAN_FRAGMENTS, selection.given)
    ((count,),) = cursor.execute(_SPAN_COUNT.format(where=where), given).fetchall()
    return int(count)


def has_rows(cursor: Cursor, selection: Selection) -> bool:
    """Return whether any span, event or log line is selected."""
    if count_spans(cursor, selection):
        return True
    found = next(events(cursor, selection), None) is not None
    return found or next(logs(cursor, selection), None) is not None


def far_parents(cursor: Cursor, selection: Selection) -> set[int]:
    """Return the spans that have children on another lane."""
    where, given = conditions(_SPAN_FRAGMENTS, selection.given)
    return {number for (number,) in cursor.execute(_FAR_PARENTS.format(where=where), given).fetchall()}


def events(cursor: Cursor, selection: Selection) -> Iterator[ExportedEvent]:
    """Yield events by process and time."""
    return map(ExportedEvent._make, _instants(cursor, _EVENTS, selection))


def logs(cursor: Cursor, selection: Selection) -> Iterator[ExportedLog]:
    """Yield log lines by process and time."""
    return map(ExportedLog._make, _instants(cursor, _LOGS, selection))


def samples(cursor: Cursor, selection: Selection) -> Iterator[ExportedSample]:
    """Yield values of gauges and counters by process and time."""
    return map(ExportedSample._make, _instants(cursor, _SAMPLES, selection) if selection.has_metrics else ())


def histograms(cursor: Cursor, selection: Selection) -> Iterator[HistogramRow]:
    """Yield distributions by process and time."""
    return map(HistogramRow._make, _instants(cursor, _HISTOGRAMS, selection) if selection.has_metrics else ())


def _instants(cursor: Cursor, sql: str, selection: Selection) -> Iterator[tuple[Any, ...]]:
    where, given = conditions(_INSTANT_FRAGMENTS, selection.given)
    yield from _stream(cursor, sql.format(where=where), given)


def _stream(cursor: Cursor, sql: str, given: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    result = cursor.execute(sql, given)
    while rows := result.fetchmany(_FETCH_ROWS):
        yield from rows


def _texts(labels: str) -> dict[str, str]:
    return {key: str(value) for key, value in read_object(labels).items()}
