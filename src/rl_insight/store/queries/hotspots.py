"""Where the time goes: spans by name (or lane, or role), with wall time as the union of intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.measures import MAX_ROWS, NOTHING, LargeGroup, Measured, measured, slice_edges
from rl_insight.store.queries.scope import Scope, ScopedSpans

GroupBy = Literal["name", "role", "lane", "name_role", "name_lane"]


class Hotspot(msgspec.Struct, frozen=True, kw_only=True):
    """The spans of one group; durations are nanoseconds, in a window those of the parts inside it."""

    name: str | None
    role: str | None
    lane_id: int | None
    count: int
    """Those that have ended; in a window, the open ones too."""
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
"""Name, role, lane; those that a grouping leaves out are None."""

_GROUPINGS = get_args(GroupBy)
_SLICES: Final = 1024
_PAIRS = "SELECT lane_id, name_id, count(*) FROM ({rows}) GROUP BY ALL ORDER BY ALL"
_SOME = """
    SELECT * FROM ({rows})
    SEMI JOIN (SELECT unnest($lane_ids) AS lane_id, unnest($name_ids) AS name_id) USING (lane_id, name_id)
"""
_EXTENT = "SELECT min(start_ns), max(start_ns) FROM ({some})"
_COUNT_SLICES = "SELECT (start_ns - $first_ns) // $width AS slice, count(*) FROM ({some}) GROUP BY slice ORDER BY slice"
_SLICE = "SELECT * FROM ({some}) WHERE start_ns >= $from_start_ns AND start_ns < $to_start_ns"
_OPEN = "SELECT lane_id, name_id, count(*) FROM {opened} WHERE {where} GROUP BY lane_id, name_id"


def hotspots(
    cursor: Cursor,
    scope: Scope | None = None,
    group_by: GroupBy = "name",
    limit: int = 500,
    now_ns: int | None = None,
) -> list[Hotspot]:
    """Return where the time goes: the groups of spans in a scope, the most wall time first.

    Wall time is the union of intervals. With `start_ns` or `end_ns`, every span that overlaps the window counts with
    its part inside it, also one that began earlier or ends later; open spans count up to the window's end, or to now.

    Args:
        cursor: of the run.
        scope: which spans; None for all.
        group_by: what makes a group.
        limit: at most this many groups.
        now_ns: in a window, open spans count up to here; None for the clock of this machine.

    >>> hotspots(cursor, Scope(last_steps=1))  # doctest: +SKIP
    """
    if group_by not in _GROUPINGS:
        raise QueryError(f"cannot group by {group_by!r}: choose one of {', '.join(_GROUPINGS)}.")
    spans = ScopedSpans(cursor, scope or Scope(), now_ns)
    running = _counts(spans, _OPEN, group_by)
    found = _measure(spans, group_by)
    found |= dict.fromkeys(running.keys() - found.keys(), NOTHING)
    names = dict(cursor.execute("SELECT name_id, name FROM names").fetchall())
    spots = [_spot(key, names, one, running.get(key, 0)) for key, one in found.items()]
    return sorted(spots, key=lambda spot: (-spot.wall_ns, -spot.open, spot.name or ""))[:limit]


def _measure(spans: ScopedSpans, group_by: str) -> dict[Key, Measured]:
    columns = "status = 'error' AS failed, " + ("name_id" if group_by == "name" else "lane_id, name_id")
    rows = spans.rows(columns, with_open=False)
    ((total,),) = spans.execute(f"SELECT count(*) FROM ({rows})").fetchall()  # noqa: S608  (constants)
    if total <= MAX_ROWS:
        return _measure_groups(spans, spans.execute(rows), group_by)
    found: dict[Key, Measured] = {}
    for part in _parts(spans, group_by):
        if part.count <= MAX_ROWS:
            found |= _measure_groups(
                spans, spans.execute(_SOME.replace("{rows}", _all(spans)), **part.given()), group_by
            )
        else:
            found[part.keys[0]] = _measure_large(spans, part)
    return found


def _measure_groups(spans: ScopedSpans, rows: Cursor, group_by: str) -> dict[Key, Measured]:
    found = rows.fetchnumpy()
    key_of, groups = _group_numbers(found, spans.roles, group_by)
    return {key_of(group): one for group, one in measured(found, groups).items()}


class _Part:
    """Groups that are measured together, as lanes and names; or a single one that is too large for that."""

    def __init__(self) -> None:
        self.count = 0
        self.keys: list[Key] = []
        self._pairs: list[tuple[int, int]] = []

    def add(self, key: Key, count: int, pairs: list[tuple[int, int]]) -> None:
        self.count += count
        self.keys.append(key)
        self._pairs += pairs

    def given(self) -> dict[str, list[int]]:
        """Return the parameters of `_SOME`."""
        return {"lane_ids": [lane for lane, _ in self._pairs], "name_ids": [name for _, name in self._pairs]}


def _all(spans: ScopedSpans) -> str:
    return spans.rows("status = 'error' AS failed, lane_id, name_id", with_open=False)


def _parts(spans: ScopedSpans, group_by: str) -> Iterator[_Part]:
    """Yield parts with at most `MAX_ROWS` spans, and larger groups by themselves."""
    groups: dict[Key, list[tuple[int, int, int]]] = {}
    for lane_id, name_id, count in spans.execute(_PAIRS.replace("{rows}", _all(spans))).fetchall():
        groups.setdefault(_key(group_by, name_id, spans.roles[lane_id], lane_id), []).append((lane_id, name_id, count))
    part = _Part()
    for key, pairs in groups.items():
        count = sum(count for *_, count in pairs)
        if part.keys and part.count + count > MAX_ROWS:
            yield part
            part = _Part()
        part.add(key, count, [(lane_id, name_id) for lane_id, name_id, _ in pairs])
    yield part


def _measure_large(spans: ScopedSpans, part: _Part) -> Measured:
    """Measure a group slice by slice, in the order of time."""
    some = _SOME.replace("{rows}", _all(spans))
    given = part.given()
    ((first_ns, last_ns),) = spans.execute(_EXTENT.replace("{some}", some), **given).fetchall()
    width = (last_ns - first_ns) // _SLICES + 1
    slices = spans.execute(_COUNT_SLICES.replace("{some}", some), first_ns=first_ns, width=width, **given).fetchall()
    edges = [*(first_ns + number * width for number in slice_edges(slices, MAX_ROWS)), last_ns + 1]
    sliced = _SLICE.replace("{some}", some)
    group = LargeGroup()
    for take in (group.add, group.keep):
        for begin_ns, end_ns in pairwise(edges):
            take(spans.execute(sliced, from_start_ns=begin_ns, to_start_ns=end_ns, **given).fetchnumpy())
    return group.measured()


def _counts(spans: ScopedSpans, sql: str, group_by: str) -> dict[Key, int]:
    """Return the counts of a query by lane and name, added up by group."""
    counts: dict[Key, int] = {}
    for lane_id, name_id, count in spans.execute(sql).fetchall():
        key = _key(group_by, name_id, spans.roles[lane_id], lane_id)
        counts[key] = counts.get(key, 0) + count
    return counts


def _key(group_by: str, name_id: int, role: str, lane_id: int) -> Key:
    return (
        name_id if "name" in group_by else None,
        role if "role" in group_by else None,
        lane_id if "lane" in group_by else None,
    )


def _group_numbers(
    found: dict[str, Any], roles: dict[int, str], group_by: str
) -> tuple[Callable[[int], Key], NDArray[Any]]:
    """Return each span's group as a number, and the function that says what a number stands for."""
    name_ids = found["name_id"]
    names = int(name_ids.max(initial=0)) + 1 if "name" in group_by else 1
    of_name = name_ids if "name" in group_by else np.zeros_like(name_ids)
    if group_by == "name":
        return lambda group: (group, None, None), of_name
    place_ids, show = _places(found["lane_id"], roles, group_by)

    def key(group: int) -> Key:
        place, name_id = divmod(group, names)
        role, lane_id = show(place)
        return name_id if "name" in group_by else None, role, lane_id

    return key, place_ids.astype(np.int64) * names + of_name


def _places(
    lane_ids: NDArray[Any], roles: dict[int, str], group_by: str
) -> tuple[NDArray[Any], Callable[[int], tuple[str | None, int | None]]]:
    if "lane" in group_by:
        return lane_ids, lambda lane_id: (None, lane_id)
    known = sorted(set(roles.values()))
    numbers = np.zeros(max(roles, default=0) + 1, np.int64)
    for lane_id, role in roles.items():
        numbers[lane_id] = known.index(role)
    return numbers[lane_ids], lambda number: (known[number], None)


def _spot(key: Key, names: dict[int, str], measured: Measured, running: int) -> Hotspot:
    name_id, role, lane_id = key
    count, total, wall, (p50, p95, p99), longest, errors = measured
    return Hotspot(
        name=None if name_id is None else names[name_id],
        role=role,
        lane_id=lane_id,
        count=count,
        total_ns=total,
        wall_ns=wall,
        average_ns=total / count if count else 0.0,
        p50_ns=p50,
        p95_ns=p95,
        p99_ns=p99,
        max_ns=longest,
        errors=errors,
        open=running,
    )
