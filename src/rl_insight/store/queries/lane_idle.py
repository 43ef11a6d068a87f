"""The idle share of each lane in a window of time."""

from __future__ import annotations

import msgspec

from rl_insight.schema.names import is_waiting
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.hotspots import wall_by_lane
from rl_insight.store.queries.scope import Scope, ScopedSpans
from rl_insight.store.tables import IS_SHOWN_LANE

_NAMES = "SELECT name_id, name FROM names"
_LANES = f"SELECT lane_id FROM lanes WHERE {IS_SHOWN_LANE} ORDER BY lane_id"  # noqa: S608  (constants)


class LaneIdle(msgspec.Struct, frozen=True):
    """How idle a lane was in a window."""

    lane_id: int
    busy_ns: int
    """How long at least one of its spans was running, without the time in which one of them was waiting."""
    share: float
    """The rest of the window, from 0 to 1."""


def lane_idle(
    cursor: Cursor, start_ns: int, end_ns: int, lane_ids: list[int] | None = None, now_ns: int | None = None
) -> list[LaneIdle]:
    """Return the idle share of each lane in a window, the idlest first.

    A lane is idle without any span, and while one of its spans waits, by its name: a wait inside another span counts as
    idle. A lane without spans in the window is entirely idle.
    """
    scope = Scope(start_ns=start_ns, end_ns=end_ns, lane_ids=lane_ids)
    wall_ns = wall_by_lane(ScopedSpans(cursor, scope, now_ns))
    waits = [number for number, name in cursor.execute(_NAMES).fetchall() if is_waiting(name)]
    waited_ns = wall_by_lane(ScopedSpans(cursor, scope, now_ns, name_ids=waits))
    wanted = None if lane_ids is None else set(lane_ids)
    found = []
    for (lane_id,) in cursor.execute(_LANES).fetchall():
        if wanted is None or lane_id in wanted:
            busy_ns = wall_ns.get(lane_id, 0) - waited_ns.get(lane_id, 0)
            found.append(LaneIdle(lane_id, busy_ns, 1 - busy_ns / (end_ns - start_ns)))
    return sorted(found, key=lambda one: (-one.share, one.lane_id))
