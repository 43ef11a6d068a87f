"""Individual spans: search, details of one, and open ones."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from rl_insight.schema.names import Severity
from rl_insight.schema.records import read_object
from rl_insight.schema.tables import Spans
from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import (
    Cursor,
    Parameters,
    checked_limit,
    conditions,
    hex_id,
    json_path,
    like_pattern,
    parse_id,
    used,
)
from rl_insight.store.queries.logs import Event, EventConditions, LogConditions, LogLine, search_events, search_logs
from rl_insight.store.queries.open_work import open_span_severity
from rl_insight.store.queries.process_ends import ends_by_id
from rl_insight.store.queries.recorded import clock_offsets
from rl_insight.store.queries.steps import counted_step, counted_windows, time_of_steps
from rl_insight.store.tables import LANE_CLOCK, PLACE, aligned


class StoredSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One span; times are aligned nanoseconds."""

    span_id: str
    trace_id: str
    parent_id: str | None
    name: str
    start_ns: int
    duration_ns: int | None
    """None while it is open."""
    until_ns: int | None = None
    """Until when an open span lasts: now, or the last sign of life of a process that ended or fell silent. None for
    one that has ended."""
    segment: str
    status: str
    error: str | None
    step: int | None
    session_id: str | None
    attributes: dict[str, Any]
    lane_id: int
    lane: str | None
    depth: int
    process_id: str
    role: str
    rank: int | None


class SpanDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A span with its context."""

    span: StoredSpan
    parents: list[StoredSpan]
    """From the nearest to the farthest, as far as known."""
    children: list[StoredSpan]
    """Direct ones, by start; at most `MAX_CHILDREN`."""
    events: list[Event]
    """The first thousand, like the logs."""
    logs: list[LogLine]
    severity: Severity | None = None
    """How overdue an open span of a live process is, as in `open/work`."""


class SpanConditions(msgspec.Struct, frozen=True, kw_only=True):
    """Which spans to look for; all conditions must match. Substring matches ignore case."""

    name: str | None = None
    """The full name."""
    name_contains: str | None = None
    text: str | None = None
    """A part of the name, the attributes, the error or the session id."""
    attribute: str | None = None
    """`key=value`."""
    error: str | None = None
    """A part of the error."""
    lane_ids: list[int] | None = None
    role: str | None = None
    status: Literal["ok", "error", "cancelled", "open"] | None = None
    step: int | None = None
    session_id: str | None = None
    trace_id: str | None = None
    """32 hexadecimal digits."""
    longer_than_ns: int | None = None
    start_ns: int | None = None
    """Started at this aligned time or later."""
    end_ns: int | None = None
    """Started before this aligned time."""


MAX_CHILDREN = 1_000
_MAX_PARENTS = 64
_MAX_RECORDS = 1_000

_OF_LANE = ("lane_id", "depth", "process_id", "role", "rank")
_FIELDS = (*Spans.COLUMNS, *_OF_LANE)
_COLUMNS = f"{aligned(Spans)}, {', '.join(_OF_LANE)}"
_JOINS = f"{PLACE} JOIN names USING (name_id)"
_BY_ID = f"""
    SELECT {_COLUMNS} FROM span_data {_JOINS} WHERE span_id = $span_id
    UNION ALL
    SELECT {_COLUMNS} FROM open_span_data {_JOINS} WHERE span_id = $span_id
"""  # noqa: S608  (constants)
_CHILDREN = f"""
    SELECT * FROM (
        SELECT {_COLUMNS} FROM span_data {_JOINS}
        WHERE parent_id = $parent_id AND trace_low = $trace_low AND trace_high = $trace_high
        UNION ALL
        SELECT {_COLUMNS} FROM open_span_data {_JOINS}
        WHERE parent_id = $parent_id AND trace_low = $trace_low AND trace_high = $trace_high
    ) ORDER BY start_ns LIMIT $limit
"""  # noqa: S608  (constants)

# Rows are found first, by the columns of the conditions; only the returned ones are read in full. At ten million spans
# this takes 10 ms instead of 300.
_FIND = """
    SELECT {table}.rowid FROM {table} {offsets} WHERE {where} ORDER BY {order} LIMIT $limit
"""
# Where no clock is off, which is the common case, DuckDB skips the parts of the file whose times cannot be among the
# first ones: the newest spans of a name take 2 ms instead of 50.
_RECORDED = ("start_ns", "")
_ALIGNED = ("start_ns + clock_offset_ns", LANE_CLOCK)
_READ = f"""
    SELECT {_COLUMNS} FROM span_data {_JOINS} WHERE span_data.rowid IN (SELECT unnest($ended::BIGINT[]))
    UNION ALL
    SELECT {_COLUMNS} FROM open_span_data {_JOINS} WHERE open_span_data.rowid IN (SELECT unnest($running::BIGINT[]))
"""  # noqa: S608  (constants)
_FRAGMENTS = {
    "names": "name_id IN (SELECT unnest($names))",
    "lanes": "lane_id IN (SELECT unnest($lanes))",
    "status": "status = $status",
    "step": "step = $step",
    "session_id": "session_id = $session_id",
    "trace_high": "trace_high = $trace_high",
    "trace_low": "trace_low = $trace_low",
    "longer": "duration_ns >= $longer",
    "from_ns": "{start} >= $from_ns",
    "until_ns": "{start} < $until_ns",
    "error": "error ILIKE $error ESCAPE '!'",
    # A substring test, much faster than parsing, rules out most rows.
    "value": "contains(attributes, $value)",
    "path": "CASE WHEN json_valid(attributes) THEN json_extract_string(attributes, $path) = $value ELSE false END",
}
# Where search text may occur. Each place is searched separately: DuckDB checks each distinct session id once and skips
# parts of a file by one column, but not within an OR, which takes 25% longer.
_TEXT_PLACES = (
    "name_id IN (SELECT name_id FROM names WHERE {name})",
    "{part}{attributes}",
    "{error}",
    "{session_id}",
)
_TEXT_COLUMNS = ("name", "attributes", "error", "session_id")
_LIKE = "{column} ILIKE $text"
_CONTAINS = "contains(lower({column}), lower($text))"
"""For search text with ILIKE wildcards: escaping them takes 50% longer."""
_CASELESS = re.compile(r"[^A-Za-z\x80-\U0010ffff]{2,}")
_COUNTED = "(step = $step OR (step IS NULL AND {start} >= $step_from_ns AND {start} < $step_until_ns))"
_NAMES = "SELECT name_id FROM names WHERE {where}"
_NAME_FRAGMENTS = {"name": "name = $name", "like": "name ILIKE $like ESCAPE '!'"}
_LANES_OF_ROLE = "SELECT lane_id FROM lanes JOIN processes USING (process) WHERE role = $role"
_ORDERS = {
    "newest": "{start} DESC",
    "oldest": "{start}",
    "longest": "duration_ns DESC, {start}",
}
_SORT_KEYS: dict[str, Callable[[StoredSpan], Any]] = {
    "newest": lambda span: -span.start_ns,
    "oldest": lambda span: span.start_ns,
    "longest": lambda span: (1 if span.duration_ns is None else -span.duration_ns, span.start_ns),
}

_OPEN_SPANS = f"SELECT {_COLUMNS} FROM open_span_data {_JOINS} ORDER BY start_ns LIMIT $limit"  # noqa: S608  (constants)


def span(cursor: Cursor, span_id: str, process_id: str | None = None, now_ns: int | None = None) -> StoredSpan | None:
    """Return a span by id, and by process if ids are not unique; None if there is none."""
    found = _spans(cursor, _BY_ID, {"span_id": parse_id(span_id)}, now_ns)
    return next((one for one in found if process_id is None or one.process_id == process_id), None)


def span_detail(
    cursor: Cursor, span_id: str, process_id: str | None = None, now_ns: int | None = None
) -> SpanDetail | None:
    """Return a span with its parents, children, events and logs; None if there is none."""
    now_ns = time.time_ns() if now_ns is None else now_ns
    found = span(cursor, span_id, process_id, now_ns)
    if found is None:
        return None
    parents: list[StoredSpan] = []
    seen = {found.span_id}
    above = found.parent_id
    while above and above not in seen and len(parents) < _MAX_PARENTS:
        seen.add(above)
        parent = span(cursor, above, now_ns=now_ns)
        if parent is None:
            break
        parents.append(parent)
        above = parent.parent_id
    found, *parents = with_counted_steps(cursor, [found, *parents])
    own: dict[str, Any] = {"span_id": found.span_id, "process_id": found.process_id}
    children = _spans(
        cursor,
        _CHILDREN,
        {
            "parent_id": parse_id(found.span_id),
            "trace_high": int(found.trace_id[:16], 16),
            "trace_low": int(found.trace_id[16:], 16),
            "limit": MAX_CHILDREN,
        },
        now_ns,
    )
    return SpanDetail(
        span=found,
        parents=parents,
        children=with_counted_steps(cursor, children),
        events=search_events(cursor, EventConditions(**own), newest_first=False, limit=_MAX_RECORDS),
        logs=search_logs(cursor, LogConditions(**own), newest_first=False, limit=_MAX_RECORDS),
        severity=_severity(cursor, found, now_ns),
    )


def _severity(cursor: Cursor, found: StoredSpan, now_ns: int) -> Severity | None:
    if found.duration_ns is not None or not ends_by_id(cursor, now_ns)[found.process_id].is_live:
        return None
    return open_span_severity(cursor, found.name, found.segment, found.start_ns, now_ns)


def search_spans(
    cursor: Cursor,
    chosen: SpanConditions | None = None,
    *,
    order: Literal["newest", "oldest", "longest"] = "newest",
    limit: int = 100,
) -> list[StoredSpan]:
    """Return the spans that match every given condition.

    `text` is a part of the name, the attributes, the error or the session id.
    """
    if order not in _ORDERS:
        raise QueryError(f"order {order!r} is unknown: it must be one of {', '.join(_ORDERS)}.")
    chosen = chosen or SpanConditions()
    counted = None if chosen.step is None else time_of_steps(cursor, chosen.step, chosen.step)
    fragments = _FRAGMENTS if counted is None else _FRAGMENTS | {"step": _COUNTED}
    sought, places = ({}, ["true"]) if chosen.text is None else _text_places(chosen.text)
    where, given = conditions(fragments, _values(cursor, chosen))
    given |= sought | {"limit": checked_limit(limit)}
    if counted is not None:
        given |= dict(zip(("step_from_ns", "step_until_ns"), counted, strict=True))
    start, offsets = _ALIGNED if any(clock_offsets(cursor)) else _RECORDED
    rows = {}
    for which, table in (("ended", "span_data"), ("running", "open_span_data")):
        found: set[int] = set()  # the first ones of each place: the first ones of all are among them
        for place in places:
            which_rows, by = f"{where} AND {place}".format(start=start), _ORDERS[order].format(start=start)
            sql = _FIND.format(table=table, offsets=offsets, where=which_rows, order=by)
            found.update(row for (row,) in cursor.execute(sql, used(sql, given)).fetchall())
        rows[which] = list(found)
    return with_counted_steps(cursor, sorted(_spans(cursor, _READ, rows), key=_SORT_KEYS[order])[:limit])


def _values(cursor: Cursor, chosen: SpanConditions) -> Parameters:
    """Return the values of `_FRAGMENTS`."""
    trace_id, attribute = chosen.trace_id, chosen.attribute
    if trace_id is not None and len(trace_id) != 32:
        raise QueryError(f"{trace_id[:40]!r} is not a trace id: it must be 32 hexadecimal digits.")
    key, equals, value = (attribute or "").partition("=")
    if attribute is not None and not equals:
        raise QueryError(f"cannot parse attribute {attribute[:80]!r}: write key=value.")
    return {
        "names": _name_ids(cursor, chosen.name, chosen.name_contains),
        "lanes": _lane_ids(cursor, chosen.lane_ids, chosen.role),
        "status": chosen.status,
        "step": chosen.step,
        "session_id": chosen.session_id,
        "trace_high": None if trace_id is None else parse_id(trace_id[:16]),
        "trace_low": None if trace_id is None else parse_id(trace_id[16:]),
        "longer": chosen.longer_than_ns,
        "from_ns": chosen.start_ns,
        "until_ns": chosen.end_ns,
        "value": None if attribute is None else value.strip(),
        "path": None if attribute is None else json_path(key.strip()),
        "error": None if chosen.error is None else like_pattern(chosen.error),
    }


def _text_places(text: str) -> tuple[Parameters, list[str]]:
    """Return the pattern of a search text, and a condition for each place where it may occur."""
    pattern = like_pattern(text)
    has_wildcards = "!" in pattern
    sought: Parameters = {"text": text if has_wildcards else pattern}
    part = ""
    if parts := _CASELESS.findall(text):  # the longest part without letters is fast to find
        sought["part"] = max(parts, key=len)
        part = "contains(attributes, $part) AND "
    form = _CONTAINS if has_wildcards else _LIKE
    has = {column: form.format(column=column) for column in _TEXT_COLUMNS}
    return sought, [place.format(part=part, **has) for place in _TEXT_PLACES]


def with_counted_steps(cursor: Cursor, spans: list[StoredSpan]) -> list[StoredSpan]:
    """Return spans with missing steps filled in from the run's step counter."""
    windows = counted_windows(cursor) if any(one.step is None for one in spans) else []
    if not windows:
        return spans
    return [
        msgspec.structs.replace(one, step=counted_step(windows, one.start_ns)) if one.step is None else one
        for one in spans
    ]


def _name_ids(cursor: Cursor, name: str | None, part: str | None) -> list[int] | None:
    if name is None and part is None:
        return None
    values = {"name": name, "like": None if part is None else like_pattern(part)}
    where, given = conditions(_NAME_FRAGMENTS, values)
    return [number for (number,) in cursor.execute(_NAMES.format(where=where), given).fetchall()]


def _lane_ids(cursor: Cursor, lane_ids: list[int] | None, role: str | None) -> list[int] | None:
    if role is None:
        return lane_ids
    of_role = [number for (number,) in cursor.execute(_LANES_OF_ROLE, {"role": role}).fetchall()]
    return of_role if lane_ids is None else [number for number in of_role if number in set(lane_ids)]


def open_spans(cursor: Cursor, limit: int = 1_000) -> list[StoredSpan]:
    """Return the open spans, the oldest first."""
    return _spans(cursor, _OPEN_SPANS, {"limit": checked_limit(limit)})


def _spans(cursor: Cursor, sql: str, parameters: Parameters, now_ns: int | None = None) -> list[StoredSpan]:
    found = [_span(row) for row in cursor.execute(sql, parameters).fetchall()]
    if all(one.duration_ns is not None for one in found):
        return found
    ends = ends_by_id(cursor, time.time_ns() if now_ns is None else now_ns)
    return [one if one.duration_ns is not None else _until(one, ends[one.process_id].until_ns) for one in found]


def _until(span: StoredSpan, end_ns: int) -> StoredSpan:
    return msgspec.structs.replace(span, until_ns=max(span.start_ns, end_ns))


def _span(row: tuple[Any, ...]) -> StoredSpan:
    fields = dict(zip(_FIELDS, row, strict=True))
    trace_id = f"{fields.pop('trace_high'):016x}{fields.pop('trace_low'):016x}"
    fields["span_id"], fields["parent_id"] = f"{fields['span_id']:016x}", hex_id(fields["parent_id"])
    fields["duration_ns"] = None if fields["duration_ns"] < 0 else fields["duration_ns"]
    return StoredSpan(**fields | {"trace_id": trace_id, "attributes": read_object(fields["attributes"])})
