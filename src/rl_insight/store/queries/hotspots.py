"""Where the time goes: spans by name (or lane, or role), with wall time as the union of intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.intervals import group_order, quantiles, union_ns, unions_ns
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
_SHARES: Final = (0.5, 0.95, 0.99)
_MANY: Final = 200
"""From so many groups on, they are measured together."""
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
    columns = "status = 'error' AS failed, " + ("name_id" if group_by == "name" else "lane_id, name_id")
    found = spans.execute(spans.rows(columns, with_open=False)).fetchnumpy()
    running = _counts(spans, _OPEN, group_by)
    key_of, groups = _group_numbers(found, spans.roles, group_by)
    measured = {key_of(group): one for group, one in _measured(found, groups).items()}
    measured |= dict.fromkeys(running.keys() - measured.keys(), _NOTHING)
    names = dict(cursor.execute("SELECT name_id, name FROM names").fetchall())
    spots = [_spot(key, names, one, running.get(key, 0)) for key, one in measured.items()]
    return sorted(spots, key=lambda spot: (-spot.wall_ns, -spot.open, spot.name or ""))[:limit]


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


class _Measured(NamedTuple):
    spans: int
    total: int
    wall: int
    shares: Sequence[float]
    longest: int
    errors: int


_NOTHING = _Measured(0, 0, 0, (0.0,) * len(_SHARES), 0, 0)


def _measured(found: dict[str, Any], groups: NDArray[Any]) -> dict[int, _Measured]:
    """Return the measures of each group."""
    if not len(groups):
        return {}
    order, bounds = group_order(groups)
    if len(bounds) > _MANY:
        return _measure_together(found, groups)
    numbers = groups[order[bounds[:-1]]].tolist()
    with ThreadPoolExecutor(2) as pool:  # NumPy gathers and sorts without the interpreter lock
        parts = [order[first:last] for first, last in pairwise(bounds)]
        return dict(zip(numbers, pool.map(lambda rows: _measure(found, rows), parts), strict=True))


def _measure(found: dict[str, Any], rows: NDArray[np.int64]) -> _Measured:
    starts, durations = found["start_ns"][rows], found["duration_ns"][rows]
    return _Measured(
        len(starts),
        int(durations.sum()),
        union_ns(starts, starts + durations),
        quantiles(durations, _SHARES),
        int(durations.max()),
        int(np.count_nonzero(found["failed"][rows])),
    )


def _measure_together(found: dict[str, Any], groups: NDArray[Any]) -> dict[int, _Measured]:
    """Return the measures of many groups in a few passes over all rows; one by one, small ones cost 50 us each."""
    by_start = np.argsort(found["start_ns"], kind="stable")
    order, bounds = group_order(groups[by_start])
    order = by_start[order]
    firsts, counts = np.array(bounds[:-1]), np.diff(bounds)
    starts, durations = found["start_ns"][order], found["duration_ns"][order]
    by_length = np.argsort(found["duration_ns"])
    lengths = found["duration_ns"][by_length[group_order(groups[by_length])[0]]]
    columns = (
        counts.tolist(),
        np.add.reduceat(durations, firsts).tolist(),
        unions_ns(starts, starts + durations, bounds).tolist(),
        np.transpose([_share(lengths, firsts, counts, share) for share in _SHARES]).tolist(),
        lengths[firsts + counts - 1].tolist(),
        np.add.reduceat(found["failed"][order].astype(np.int64), firsts).tolist(),
    )
    return {number: _Measured(*row) for number, *row in zip(groups[order[firsts]].tolist(), *columns, strict=True)}


def _share(
    lengths: NDArray[np.int64], firsts: NDArray[np.int64], counts: NDArray[np.int64], share: float
) -> NDArray[np.float64]:
    """Return a quantile of each group, as `quantiles` does; the lengths of a group are in order."""
    place = share * (counts - 1)
    below = place.astype(np.int64)
    low, high = lengths[firsts + below], lengths[firsts + np.minimum(below + 1, counts - 1)]
    found: NDArray[np.float64] = low + (high - low) * (place - below)
    return found


def _spot(key: Key, names: dict[int, str], measured: _Measured, running: int) -> Hotspot:
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
