"""Log lines and events."""

from __future__ import annotations

from typing import Any

import msgspec

from rl_insight.schema.records import read_object
from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import (
    Cursor,
    Parameters,
    Row,
    checked_limit,
    conditions,
    hex_id,
    like_pattern,
    parse_id,
)
from rl_insight.store.queries.steps import counted_step, counted_windows, stepped
from rl_insight.store.tables import IS_SHOWN_LANE, PLACE


class LogLine(msgspec.Struct, frozen=True):
    """A log line; the time is aligned."""

    time_ns: int
    level: int
    """As in the `logging` module."""
    logger: str | None
    message: str
    span_id: str | None
    step: int | None
    session_id: str | None
    attributes: dict[str, Any]
    process_id: str
    role: str
    rank: int | None
    lane: str | None
    lane_id: int


class Event(msgspec.Struct, frozen=True):
    """An instant; the time is aligned."""

    time_ns: int
    name: str
    span_id: str | None
    step: int | None
    session_id: str | None
    attributes: dict[str, Any]
    process_id: str
    role: str
    rank: int | None
    lane: str | None
    lane_id: int


class LogInterval(msgspec.Struct, frozen=True):
    """The log lines of one interval."""

    start_ns: int
    lines: int
    """Of any level."""
    warnings: int
    errors: int
    """ERROR and above, which `warnings` leaves out."""


class LogHistogram(msgspec.Struct, frozen=True):
    """Log lines per interval; empty intervals are left out."""

    width_ns: int
    intervals: list[LogInterval]


class EventConditions(msgspec.Struct, frozen=True, kw_only=True):
    """Which events to look for; all conditions must match."""

    text: str | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    span_id: str | None = None
    process_id: str | None = None
    session_id: str | None = None
    step: int | None = None
    lane_ids: list[int] | None = None


class LogConditions(EventConditions, frozen=True, kw_only=True):
    """Which log lines to look for."""

    level: int = 0
    """At least this level."""
    role: str | None = None
    rank: int | None = None


MAX_INTERVALS = 1_000
_FRAGMENTS = {
    "start_ns": "time_ns + clock_offset_ns >= $start_ns",
    "end_ns": "time_ns + clock_offset_ns < $end_ns",
    "span_id": "span_id = $span_id",
    "process_id": "process_id = $process_id",
    "role": "role = $role",
    "rank": "rank = $rank",
    "session_id": "session_id = $session_id",
    "step": "step = $step",
    "lane_ids": "list_contains($lane_ids, lane_id)",
    "level": "level >= $level",
    "in_log": "(message ILIKE $in_log ESCAPE '!' OR attributes ILIKE $in_log ESCAPE '!')",
    "in_event": "(name ILIKE $in_event ESCAPE '!' OR attributes ILIKE $in_event ESCAPE '!')",
}
_SELECT = f"""
    SELECT time_ns + clock_offset_ns AS at_ns, {{columns}} FROM {{table}} {PLACE}
    WHERE {{where}} ORDER BY at_ns {{direction}} LIMIT $limit
"""  # noqa: S608  (constants)
_SPAN_OF_TIME = f"""
    SELECT min(time_ns + clock_offset_ns), max(time_ns + clock_offset_ns) FROM {{table}} {PLACE} WHERE {{where}}
"""  # noqa: S608  (constants)
_COUNTS = f"""
    SELECT (time_ns + clock_offset_ns - $origin) // $width AS interval, count(*),
        count(*) FILTER (level >= 30 AND level < 40), count(*) FILTER (level >= 40)
    FROM {{table}} {PLACE} WHERE {{where}} GROUP BY interval ORDER BY interval
"""  # noqa: S608  (constants)
_DIRECTIONS = {True: "DESC", False: "ASC"}


def search_logs(
    cursor: Cursor, chosen: LogConditions | None = None, *, newest_first: bool = True, limit: int = 200
) -> list[LogLine]:
    """Return the log lines that match every given condition; `text` matches in message and attributes."""
    return [line for line, _ in logs_and_texts(cursor, chosen, newest_first=newest_first, limit=limit)]


def logs_and_texts(
    cursor: Cursor, chosen: LogConditions | None = None, *, newest_first: bool = True, limit: int = 200
) -> list[tuple[LogLine, str | None]]:
    """Return log lines, each with its attributes as recorded, in which `text` matches."""
    return _found(cursor, LogLine, "log_data", chosen or LogConditions(), limit, newest_first=newest_first)


def log_histogram(cursor: Cursor, chosen: LogConditions | None = None, *, intervals: int = 100) -> LogHistogram:
    """Return the number of matching log lines over time, in `intervals` intervals."""
    if not 1 <= intervals <= MAX_INTERVALS:
        raise QueryError(f"intervals {intervals} is out of range: it must be from 1 to {MAX_INTERVALS}.")
    chosen = chosen or LogConditions()
    where, given = _where(chosen)
    words = {"table": _table(cursor, "log_data", chosen.step), "where": where}
    first, last = cursor.execute(_SPAN_OF_TIME.format(**words), given).fetchone() or (None, None)
    if first is None:
        return LogHistogram(0, [])
    width = (last - first) // intervals + 1
    rows = cursor.execute(_COUNTS.format(**words), given | {"origin": first, "width": width}).fetchall()
    return LogHistogram(width, [LogInterval(first + place * width, *counts) for place, *counts in rows])


def search_events(
    cursor: Cursor, chosen: EventConditions | None = None, *, newest_first: bool = True, limit: int = 200
) -> list[Event]:
    """Return the events that match every given condition; `text` matches in name and attributes."""
    return [event for event, _ in events_and_texts(cursor, chosen, newest_first=newest_first, limit=limit)]


def events_and_texts(
    cursor: Cursor, chosen: EventConditions | None = None, *, newest_first: bool = True, limit: int = 200
) -> list[tuple[Event, str | None]]:
    """Return events, each with its attributes as recorded, in which `text` matches."""
    return _found(cursor, Event, "event_data", chosen or EventConditions(), limit, newest_first=newest_first)


def _where(chosen: EventConditions) -> tuple[str, Parameters]:
    given = msgspec.structs.asdict(chosen)
    if not given.get("level"):
        given.pop("level", None)
    if (text := given.pop("text")) is not None:
        given["in_log" if isinstance(chosen, LogConditions) else "in_event"] = like_pattern(text)
    given["span_id"] = None if chosen.span_id is None else parse_id(chosen.span_id)
    where, given = conditions(_FRAGMENTS, given)
    return where if isinstance(chosen, LogConditions) else f"{where} AND {IS_SHOWN_LANE}", given


def _table(cursor: Cursor, table: str, step: int | None) -> str:
    return table if step is None else stepped(cursor, table)


def _found(
    cursor: Cursor, kind: type[Row], table: str, chosen: EventConditions, limit: int, *, newest_first: bool
) -> list[tuple[Row, str | None]]:
    where, given = _where(chosen)
    source = _table(cursor, table, chosen.step)
    names = kind.__struct_fields__
    direction = _DIRECTIONS[newest_first]
    sql = _SELECT.format(columns=", ".join(names[1:]), table=source, where=where, direction=direction)
    rows = cursor.execute(sql, given | {"limit": checked_limit(limit)}).fetchall()
    records = [dict(zip(names, row, strict=True)) for row in rows]
    windows = counted_windows(cursor) if any(fields["step"] is None for fields in records) else []
    found = []
    for fields in records:
        text = fields["attributes"]
        fields["span_id"], fields["attributes"] = hex_id(fields["span_id"]), read_object(text)
        if fields["step"] is None:
            fields["step"] = counted_step(windows, fields["time_ns"])
        found.append((kind(**fields), text))
    return found
