"""Where the time goes: spans by name (or lane, or role), with wall time as the union of intervals."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.measures import MAX_ROWS, NOTHING, Measured, measure_large, measured
from rl_insight.store.queries.scope import Scope, ScopedSpans

GroupBy = Literal["name", "role", "lane", "name_role", "name_lane"]


class Hotspot(msgspec.Struct, frozen=True):
    """The spans of one group; durations are in nanoseconds, clipped to the window if there is one."""

    name: str | None
    role: str | None
    lane_id: int | None
    count: int
    """Ended spans; in a window, also open ones."""
    total_ns: int
    wall_ns: int
    """How long at least one of them was running."""
    average_ns: float
    p50_ns: float
    p95_ns: float
    p99_ns: float
    max_ns: int
    errors: int
    open: int


Key = tuple[int | None, str | None, int | None]
"""Name, role, lane; None where the grouping does not use them."""

_GROUPINGS = get_args(GroupBy)
_PAIRS = "SELECT lane_id, name_id, count(*) FROM ({rows}) GROUP BY ALL ORDER BY ALL"
_SOME = """
    SELECT * FROM ({rows})
    SEMI JOIN (SELECT unnest($lane_ids) AS lane_id, unnest($name_ids) AS name_id) USING (lane_id, name_id)
"""
_OPEN = "SELECT lane_id, name_id, count(*) FROM {opened} WHERE {where} GROUP BY lane_id, name_id"


def hotspots(
    cursor: Cursor,
    scope: Scope | None = None,
    group_by: GroupBy = "name",
    limit: int = 500,
    now_ns: int | None = None,
) -> list[Hotspot]:
    """Return where the time goes: the groups of spans in a scope, the most wall time first.

    Wall time is the union of intervals. With `start_ns` or `end_ns`, spans that overlap the window are clipped to it;
    open spans count up to the window's end, or to now while their process is live.

    >>> hotspots(cursor, Scope(last_steps=1))  # doctest: +SKIP
    """
    if group_by not in _GROUPINGS:
        raise QueryError(f"cannot group by {group_by!r}: choose one of {', '.join(_GROUPINGS)}.")
    spans = ScopedSpans(cursor, scope or Scope(), now_ns)
    running: dict[Key, int] = {}
    for lane_id, name_id, count in spans.execute(_OPEN).fetchall():
        key = _key(spans, group_by, lane_id, name_id)
        running[key] = running.get(key, 0) + count
    found = _measure(spans, group_by)
    found |= dict.fromkeys(running.keys() - found.keys(), NOTHING)
    names = dict(cursor.execute("SELECT name_id, name FROM names").fetchall())
    spots = [_spot(key, names, one, running.get(key, 0)) for key, one in found.items()]
    return sorted(spots, key=lambda spot: (-spot.wall_ns, -spot.open, spot.name or ""))[:limit]


def wall_by_lane(spans: ScopedSpans) -> dict[int, int]:
    """Return how long at least one span of each lane was running; lanes without any are left out."""
    return {lane_id: one.wall for (_, _, lane_id), one in _measure(spans, "lane").items() if lane_id is not None}


def _measure(spans: ScopedSpans, group_by: str) -> dict[Key, Measured]:
    columns = "status = 'error' AS failed, " + ("name_id" if group_by == "name" else "lane_id, name_id")
    rows = spans.rows(columns, with_open=False)
    ((total,),) = spans.execute(f"SELECT count(*) FROM ({rows})").fetchall()  # noqa: S608  (constants)
    if total <= MAX_ROWS:
        return _measure_groups(spans, spans.execute(rows).fetchnumpy(), group_by)
    rows = spans.rows("status = 'error' AS failed, lane_id, name_id", with_open=False)
    found: dict[Key, Measured] = {}
    for keys, count, pairs in _parts(spans, rows, group_by):
        execute = partial(spans.execute, lane_ids=[lane for lane, _ in pairs], name_ids=[name for _, name in pairs])
        some = _SOME.replace("{rows}", rows)
        if count <= MAX_ROWS:
            found |= _measure_groups(spans, execute(some).fetchnumpy(), group_by)
        else:
            found[keys[0]] = measure_large(execute, some)
    return found


def _parts(spans: ScopedSpans, rows: str, group_by: str) -> Iterator[tuple[list[Key], int, list[tuple[int, int]]]]:
    """Yield groups of at most `MAX_ROWS` spans in total, as keys, count, lanes and names; a larger one alone."""
    groups: dict[Key, list[tuple[int, int, int]]] = {}
    for lane_id, name_id, count in spans.execute(_PAIRS.replace("{rows}", rows)).fetchall():
        groups.setdefault(_key(spans, group_by, lane_id, name_id), []).append((lane_id, name_id, count))
    keys: list[Key] = []
    pairs: list[tuple[int, int]] = []
    together = 0
    for key, members in groups.items():
        size = sum(count for *_, count in members)
        if keys and together + size > MAX_ROWS:
            yield keys, together, pairs
            keys, together, pairs = [], 0, []
        keys.append(key)
        together += size
        pairs += [(lane_id, name_id) for lane_id, name_id, _ in members]
    yield keys, together, pairs


def _key(spans: ScopedSpans, group_by: str, lane_id: int, name_id: int) -> Key:
    return (
        name_id if "name" in group_by else None,
        spans.roles[spans.role_of[lane_id]] if "role" in group_by else None,
        lane_id if "lane" in group_by else None,
    )


def _measure_groups(spans: ScopedSpans, found: dict[str, Any], group_by: str) -> dict[Key, Measured]:
    """Measure each group; its number combines the place (a lane or a role) and the name."""
    groups = found["name_id"] if "name" in group_by else np.zeros_like(found["name_id"])
    names = int(groups.max(initial=0)) + 1
    if group_by != "name":
        lanes = found["lane_id"]
        places = lanes if "lane" in group_by else spans.role_of[lanes]
        groups = places.astype(np.int64) * names + groups
    made: dict[Key, Measured] = {}
    for group, one in measured(found, groups).items():
        place, name_id = divmod(group, names)
        role = spans.roles[place] if "role" in group_by else None
        made[name_id if "name" in group_by else None, role, place if "lane" in group_by else None] = one
    return made


def _spot(key: Key, names: dict[int, str], measured: Measured, running: int) -> Hotspot:
    name_id, role, lane_id = key
    count, total, wall, (p50, p95, p99), longest, errors = measured
    name, average = None if name_id is None else names[name_id], total / count if count else 0.0
    return Hotspot(name, role, lane_id, count, total, wall, average, p50, p95, p99, longest, errors, running)
