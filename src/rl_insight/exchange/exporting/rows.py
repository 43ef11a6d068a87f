"""The rows of a run, streamed, for exports. Times are aligned across processes."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from rl_insight.schema import Process
from rl_insight.schema.records import read_labels
from rl_insight.schema.signs_of_life import LastSeen
from rl_insight.schema.tables import TABLES
from rl_insight.sessions.model import FIELDS, StoredSession
from rl_insight.store.queries import Cursor
from rl_insight.store.queries.base import Parameters, conditions
from rl_insight.store.queries.process_ends import LastReport, last_reports
from rl_insight.store.session_rows import session_of_row
from rl_insight.store.tables import VIEWS

_FETCH_ROWS = 10_000

Row: TypeAlias = Any
"""A row of spans, events, logs, samples or histograms: a named tuple, see `_FIELDS`."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a run to export; conditions are combined with AND."""

    start_ns: int | None = None
    end_ns: int | None = None
    """Exclusive. Spans that overlap the window are selected."""
    step: int | None = None
    session_id: str | None = None
    lane: str | None = None
    """The name of a lane; for a process's own lane, the process id or the role."""

    @property
    def has_metrics(self) -> bool:
        """Whether it includes metrics, which belong to no lane and no session."""
        return self.lane is None and self.session_id is None


class ExportedSeries(NamedTuple):
    """A metric with its labels as a JSON object string."""

    name: str
    kind: str
    documentation: str
    labels: str


_FIELDS: Final = {
    **{table: ("process", "lane_id", *TABLES[table].COLUMNS) for table in ("spans", "events", "logs")},
    "samples": ("process", "series_id", "time_ns", "value", "step"),
    "histograms": ("process", "series_id", "time_ns", "step", "count", "sum", "min", "max", "codes", "counts"),
}
_ROWS: Final[dict[str, Any]] = {
    table: namedtuple(table, names)  # noqa: PYI024  # from the declarations of the tables
    for table, names in _FIELDS.items()
}
OF_METRICS: Final = frozenset({"samples", "histograms"})
_PROCESS_FIELDS: Final = Process.__struct_fields__
_IN_PLACE: Final = {
    "step": "step = $step",
    "session_id": "session_id = $session_id",
    "lane": "(lane = $lane OR (lane IS NULL AND (process_id = $lane OR role = $lane)))",
}
_INSTANTS: Final = _IN_PLACE | {
    "start_ns": "time_ns + clock_offset_ns >= $start_ns",
    "end_ns": "time_ns + clock_offset_ns < $end_ns",
}
_CONDITIONS: Final = {
    "spans": _IN_PLACE
    | {
        "start_ns": "(duration_ns < 0 OR start_ns + clock_offset_ns + duration_ns >= $start_ns)",
        "end_ns": "start_ns + clock_offset_ns < $end_ns",
    },
    "sessions": _IN_PLACE
    | {
        "start_ns": "coalesce(coalesce(finalized_ts, wait_return_ts) * 1e9 >= $start_ns, true)",
        "end_ns": "coalesce(submit_ts * 1e9 < $end_ns, true)",
        "lane": "$lane IS NULL",  # sessions have no lane; DuckDB refuses parameters that a query does not use
    },
}
"""The conditions of a selection on stored columns, by table; all others use `_INSTANTS`."""
_SOURCES: Final = {name: [source] for name, (_, source) in VIEWS.items()} | {
    "spans": [VIEWS["spans"][1], VIEWS["open_spans"][1]],
    "sessions": ["sessions"],
}
# Chosen spans that have chosen children on another lane.
_FAR_PARENTS: Final = """
    WITH chosen AS ({chosen})
    SELECT DISTINCT child.parent_id FROM chosen AS child
    JOIN chosen AS parent ON child.parent_id = parent.span_id AND child.trace_low = parent.trace_low
    WHERE child.parent_id <> 0 AND child.lane_id <> parent.lane_id
"""
_OBSERVED: Final = "SELECT process, last_seen_ns, final, heartbeat_s FROM processes WHERE delay_ns IS NOT NULL"
_PROCESS_AND_TIME: Final = "process, time_ns"
SPANS_BY_PROCESS: Final = "process, start_ns, duration_ns DESC"
SPANS_BY_LANE: Final = "lane_id, start_ns, depth, duration_ns DESC"
"""Parents before their children, even if both started at the same time."""


def selected(table: str, columns: str, selection: Selection) -> tuple[str, Parameters]:
    """Return the SELECT for the selected rows of a table, and its parameters."""
    where, given = conditions(_CONDITIONS.get(table, _INSTANTS), msgspec.structs.asdict(selection))
    parts = (f"SELECT {columns} FROM {source} WHERE {where}" for source in _SOURCES[table])  # noqa: S608  (constants)
    return " UNION ALL ".join(parts), given


def processes(cursor: Cursor) -> dict[int, Process]:
    """Return the processes by their numbers, sorted by role and rank."""
    found = {}
    order = "role, rank NULLS LAST, process_id"
    sql = f"SELECT process, {', '.join(_PROCESS_FIELDS)} FROM processes ORDER BY {order}"  # noqa: S608  (constants)
    for number, *values in cursor.execute(sql).fetchall():
        fields = dict(zip(_PROCESS_FIELDS, values, strict=True))
        fields["labels"] = read_labels(fields["labels"])
        found[number] = Process(**fields)
    return found


def series(cursor: Cursor) -> dict[int, ExportedSeries]:
    """Return the series by their numbers."""
    rows = cursor.execute("SELECT series_id, name, kind, documentation, labels FROM series").fetchall()
    return {number: ExportedSeries(*values) for number, *values in rows}


def last_seen(cursor: Cursor) -> list[LastReport]:
    """Return when each process last reported: as observed here or, for an imported process, by its sender."""
    observed = {
        process: LastReport(process, last_seen_ns, LastSeen(final=final, heartbeat_s=heartbeat_s))
        for process, last_seen_ns, final, heartbeat_s in cursor.execute(_OBSERVED).fetchall()
    }
    return sorted(({one.process: one for one in last_reports(cursor)} | observed).values())


def losses(cursor: Cursor) -> list[tuple[int, str, str, int]]:
    """Return the losses as process, kind, reason and count."""
    return cursor.execute("SELECT process, kind, reason, count FROM losses").fetchall()


def recorded(cursor: Cursor, table: str, selection: Selection, order: str = _PROCESS_AND_TIME) -> Iterator[Row]:
    """Yield the rows of a table as they were recorded; spans include open ones."""
    if table in OF_METRICS and not selection.has_metrics:
        return iter(())
    times = {"start_ns", "time_ns"}
    names = [f"{name} + clock_offset_ns AS {name}" if name in times else name for name in _FIELDS[table]]
    shown, columns = ("* EXCLUDE (depth)", [*names, "depth"]) if table == "spans" else ("*", names)
    return map(_ROWS[table]._make, _stream(cursor, table, ", ".join(columns), selection, order, shown))


def count_spans(cursor: Cursor, selection: Selection) -> int:
    """Return how many spans are selected, including open ones."""
    return _count(cursor, "spans", selection)


def has_rows(cursor: Cursor, selection: Selection) -> bool:
    """Return whether any span, event or log line is selected."""
    return any(_count(cursor, table, selection) for table in ("spans", "events", "logs"))


def far_parents(cursor: Cursor, selection: Selection) -> set[int]:
    """Return the spans that have children on another lane."""
    sql, given = selected("spans", "span_id, parent_id, trace_low, lane_id", selection)
    return {number for (number,) in cursor.execute(_FAR_PARENTS.format(chosen=sql), given).fetchall()}


def sessions(cursor: Cursor, selection: Selection) -> Iterator[StoredSession]:
    """Yield sessions by id."""
    return map(session_of_row, _stream(cursor, "sessions", ", ".join(FIELDS), selection, "session_id"))


def _count(cursor: Cursor, table: str, selection: Selection) -> int:
    sql, given = selected(table, "1", selection)
    ((count,),) = cursor.execute(f"SELECT count(*) FROM ({sql})", given).fetchall()  # noqa: S608  (constants)
    return int(count)


def _stream(
    cursor: Cursor,
    table: str,
    columns: str,
    selection: Selection,
    order: str = _PROCESS_AND_TIME,
    shown: str = "*",
) -> Iterator[tuple[Any, ...]]:
    sql, given = selected(table, columns, selection)
    result = cursor.execute(f"SELECT {shown} FROM ({sql}) ORDER BY {order}", given)  # noqa: S608  (constants)
    while rows := result.fetchmany(_FETCH_ROWS):
        yield from rows
