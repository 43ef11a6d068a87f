"""Open spans of live processes by name: the age of the oldest, how long they usually take, whether it is overdue."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from rl_insight.schema.names import Severity
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.overdue import work_severity
from rl_insight.store.queries.process_ends import register_ends
from rl_insight.store.tables import PLACE, SECOND


class OpenWork(msgspec.Struct, frozen=True):
    """Running work of one name."""

    name: str
    count: int
    oldest_ns: int
    """When the oldest started."""
    oldest_age_s: float
    oldest_span_id: str
    oldest_session_id: str | None
    process_id: str
    lane: str | None
    role: str
    rank: int | None
    lane_id: int
    usual_s: float | None
    """The median duration of finished ones among the latest million spans; None if none has finished."""
    long_s: float | None
    """99% of those took at most this long."""
    severity: Severity | None = None
    """How overdue the oldest is: a warning after max(12 s, 5 × `long_s`), critical after 60 s; for a phase of a session
    info after max(20 s, 5 × `long_s`) and a warning after 60 s. None if it is not overdue, or fewer than three have
    finished. Rules about stuck work use the same limits."""


class UsualDuration(NamedTuple):
    """How long finished spans of one name took, in seconds."""

    seen: int
    usual_s: float | None
    long_s: float | None


_NEVER_SEEN = UsualDuration(0, None, None)
_AGE = "start_ns + clock_offset_ns"
_OPEN = f"""
    SELECT name, arg_min(segment, {_AGE}), count(*), min({_AGE}), arg_min(span_id, {_AGE}), arg_min(session_id, {_AGE}),
        arg_min(process_id, {_AGE}), arg_min(lane, {_AGE}), arg_min(role, {_AGE}), arg_min(rank, {_AGE}),
        arg_min(lane_id, {_AGE})
    FROM open_span_data {PLACE} JOIN names USING (name_id) JOIN process_ends USING (process)
    WHERE is_live GROUP BY name ORDER BY 4
"""  # noqa: S608  (constants)
_RECENT_SPANS = 1_000_000
# Rows are nearly in order of time; scanning all of ten million spans would take a second.
_USUAL = """
    SELECT name, count(*), quantile_cont(duration_ns, 0.5) / 1e9, quantile_cont(duration_ns, 0.99) / 1e9
    FROM span_data JOIN names USING (name_id)
    WHERE span_data.rowid >= (SELECT max(rowid) FROM span_data) - $recent AND {names}
    GROUP BY name
"""
_OPEN_NAMES = "name_id IN (SELECT name_id FROM open_span_data)"
_ONE_NAME = "name = $name"


def open_work(cursor: Cursor, now_ns: int) -> list[OpenWork]:
    """Return running work by name, the oldest first, with its usual duration and whether it is overdue.

    Work that a process left open when it ended or fell silent is not running.
    """
    register_ends(cursor, now_ns)
    rows = cursor.execute(_OPEN).fetchall()
    if not rows:
        return []
    usual = _usual(cursor, _OPEN_NAMES)
    found = []
    for name, segment, count, oldest_ns, span_id, *place in rows:
        age_s = max(0, now_ns - oldest_ns) / SECOND
        seen, usual_s, long_s = usual.get(name, _NEVER_SEEN)
        severity = work_severity(segment, age_s, long_s, seen)
        known = (name, count, oldest_ns, age_s, f"{span_id:016x}", *place, usual_s, long_s, severity)
        found.append(OpenWork(*known))
    return found


def open_span_severity(cursor: Cursor, name: str, segment: str, start_ns: int, now_ns: int) -> Severity | None:
    """Return how overdue an open span is, as `OpenWork.severity` does."""
    seen, _, long_s = _usual(cursor, _ONE_NAME, name=name).get(name, _NEVER_SEEN)
    return work_severity(segment, max(0, now_ns - start_ns) / SECOND, long_s, seen)


def _usual(cursor: Cursor, names: str, **given: str) -> dict[str, UsualDuration]:
    rows = cursor.execute(_USUAL.format(names=names), given | {"recent": _RECENT_SPANS}).fetchall()
    return {name: UsualDuration(*rest) for name, *rest in rows}
