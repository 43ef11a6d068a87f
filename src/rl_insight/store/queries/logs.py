"""Log lines and events."""

from __future__ import annotations

from typing import Any

import msgspec

from rl_insight.store.queries.base import (
    Cursor,
    Parameters,
    attributes_of,
    checked_limit,
    conditions,
    hex_id,
    like_pattern,
    parse_id,
)


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


_PLACE = "span_id, step, session_id, attributes, process_id, role, rank, lane"
_JOINS = "JOIN lanes USING (lane_id) JOIN processes USING (process)"

_FRAGMENTS = {
    "from_ns": "time_ns + clock_offset_ns >= $from_ns",
    "until_ns": "time_ns + clock_offset_ns < $until_ns",
    "span_id": "span_id = $span_id",
    "process_id": "process_id = $process_id",
    "session_id": "session_id = $session_id",
    "step": "step = $step",
    "lanes": "list_contains($lanes, lane_id)",
    "level": "level >= $level",
    "in_log": "(message ILIKE $in_log ESCAPE '!' OR attributes ILIKE $in_log ESCAPE '!')",
    "in_event": "(name ILIKE $in_event ESCAPE '!' OR attributes ILIKE $in_event ESCAPE '!')",
}
_LOGS = f"""
    SELECT time_ns + clock_offset_ns AS at_ns, level, logger, message, {_PLACE} FROM log_data {_JOINS}
    WHERE {{where}} ORDER BY at_ns {{direction}} LIMIT $limit
"""  # noqa: S608  (constants)
_EVENTS = f"""
    SELECT time_ns + clock_offset_ns AS at_ns, name, {_PLACE} FROM event_data {_JOINS}
    WHERE {{where}} ORDER BY at_ns {{direction}} LIMIT $limit
"""  # noqa: S608  (constants)
_DIRECTIONS = {True: "DESC", False: "ASC"}


def search_logs(
    cursor: Cursor,
    *,
    text: str | None = None,
    level: int = 0,
    start_ns: int | None = None,
    end_ns: int | None = None,
    span_id: str | None = None,
    process_id: str | None = None,
    session_id: str | None = None,
    step: int | None = None,
    lane_ids: list[int] | None = None,
    newest_first: bool = True,
    limit: int = 200,
) -> list[LogLine]:
    """Return the log lines that fit every condition given; `text` is looked for in message and attributes."""
    values = _values(start_ns, end_ns, span_id, process_id, session_id, step, lane_ids)
    values |= {"level": level or None, "in_log": None if text is None else like_pattern(text)}
    rows = _rows(cursor, _LOGS, values, limit, newest_first=newest_first)
    return [LogLine(*head, *_place(place)) for *head, place in (_split(row, 4) for row in rows)]


def search_events(
    cursor: Cursor,
    *,
    text: str | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
    span_id: str | None = None,
    process_id: str | None = None,
    session_id: str | None = None,
    step: int | None = None,
    lane_ids: list[int] | None = None,
    newest_first: bool = True,
    limit: int = 200,
) -> list[Event]:
    """Return the events that fit every condition given; `text` is looked for in name and attributes."""
    values = _values(start_ns, end_ns, span_id, process_id, session_id, step, lane_ids)
    values |= {"in_event": None if text is None else like_pattern(text)}
    rows = _rows(cursor, _EVENTS, values, limit, newest_first=newest_first)
    return [Event(*head, *_place(place)) for *head, place in (_split(row, 2) for row in rows)]


def events_of_span(cursor: Cursor, span_id: int, process_id: str) -> list[Event]:
    """Return the first thousand events of a span, in order."""
    return search_events(cursor, span_id=f"{span_id:016x}", process_id=process_id, newest_first=False, limit=1_000)


def logs_of_span(cursor: Cursor, span_id: int, process_id: str) -> list[LogLine]:
    """Return the first thousand log lines of a span, in order."""
    return search_logs(cursor, span_id=f"{span_id:016x}", process_id=process_id, newest_first=False, limit=1_000)


def _values(
    start_ns: int | None,
    end_ns: int | None,
    span_id: str | None,
    process_id: str | None,
    session_id: str | None,
    step: int | None,
    lane_ids: list[int] | None,
) -> Parameters:
    return {
        "from_ns": start_ns,
        "until_ns": end_ns,
        "span_id": None if span_id is None else parse_id(span_id),
        "process_id": process_id,
        "session_id": session_id,
        "step": step,
        "lanes": lane_ids,
    }


def _rows(cursor: Cursor, sql: str, values: Parameters, limit: int, *, newest_first: bool) -> list[tuple[Any, ...]]:
    where, given = conditions(_FRAGMENTS, values)
    sql = sql.format(where=where, direction=_DIRECTIONS[newest_first])
    return cursor.execute(sql, given | {"limit": checked_limit(limit)}).fetchall()


def _split(row: tuple[Any, ...], head: int) -> tuple[Any, ...]:
    return (*row[:head], row[head:])


def _place(row: tuple[Any, ...]) -> tuple[Any, ...]:
    span_id, step, session_id, attributes, process_id, role, rank, lane = row
    return hex_id(span_id), step, session_id, attributes_of(attributes), process_id, role, rank, lane
