"""The states and phases of all lanes during some steps, as arrays; where a role has none, its spans."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_insight.store.queries.base import IS_STATE, Cursor
from rl_insight.store.queries.process_ends import LANE_ENDS, register_ends
from rl_insight.store.queries.steps import StepWindow
from rl_insight.store.tables import LANE_CLOCK, LONG_SPAN_NS

LANES = """
    SELECT lane_id, clock_offset_ns, process, lane, role, process_id, rank, host
    FROM lanes JOIN processes USING (process)
"""
_TIMES = "lane_id, name_id, start_ns"
_NESTED = f"{_TIMES}, depth, segment = 'phase' AS is_phase, span_id, parent_id"
_IS_SPAN = """(segment = 'phase' OR (segment = 'duration' AND depth <= 2))
    AND lane_id IN (SELECT lane_id FROM lanes JOIN processes USING (process) WHERE role = $role)"""
_WHOLE_STEP = 0.9
"""A span that takes this share of its step is the step itself, which says nothing about where its time went."""
# Short states are found by the time order of the file; long ones may have started much earlier.
# Recorded times: a join with the clocks would take most of the time, for two million states.
_STATES = """
    SELECT {columns}, start_ns + duration_ns AS end_ns FROM span_data
    WHERE {condition} AND start_ns >= $from_ns AND start_ns < $until_ns AND duration_ns < $long
    UNION ALL
    SELECT {columns}, start_ns + duration_ns FROM span_data
    WHERE {condition} AND duration_ns >= $long AND start_ns < $until_ns AND start_ns + duration_ns > $ended_ns
    UNION ALL
    SELECT {columns}, greatest(start_ns, until_ns - clock_offset_ns) FROM open_span_data {clock} {ends}
    WHERE {condition} AND start_ns < $until_ns
"""
_NAMES = "SELECT name_id, name FROM names"


class LanePlace(NamedTuple):
    """The process that a lane belongs to."""

    process: int
    lane: str | None
    role: str
    process_id: str
    rank: int | None
    host: str


class StateTimes:
    """When each lane was in which state or phase during some steps; aligned nanoseconds.

    Its columns are `lane_id`, `name_id`, `start_ns` and `end_ns`; open states end as `process_ends` says.
    """

    def __init__(
        self,
        cursor: Cursor,
        steps: list[StepWindow],
        now_ns: int | None = None,
        *,
        columns: str = _TIMES,
        condition: str = IS_STATE,
        **given: str,
    ) -> None:
        self.start_ns = min(step.start_ns for step in steps)
        self.end_ns = max(step.end_ns or 0 for step in steps)
        self.names: dict[int, str] = dict(cursor.execute(_NAMES).fetchall())
        places = cursor.execute(LANES).fetchall()
        self.lanes = {lane_id: LanePlace(*place) for lane_id, _, *place in places}
        offsets = np.zeros(max(self.lanes, default=0) + 1, np.int64)
        offsets[[lane_id for lane_id, *_ in places]] = [offset_ns for _, offset_ns, *_ in places]
        least, most = int(offsets.min()), int(offsets.max())
        window: dict[str, int | str] = {
            "from_ns": self.start_ns - most - LONG_SPAN_NS,
            "until_ns": self.end_ns - least,
            "ended_ns": self.start_ns - most,
            "long": LONG_SPAN_NS,
        }
        register_ends(cursor, time.time_ns() if now_ns is None else now_ns)
        sql = _STATES.format(columns=columns, clock=LANE_CLOCK, ends=LANE_ENDS, condition=condition)
        found = cursor.execute(sql, window | given).fetchnumpy()
        if least or most:
            found |= {name: found[name] + offsets[found["lane_id"]] for name in ("start_ns", "end_ns")}
        inside = (found["start_ns"] < self.end_ns) & (found["end_ns"] > self.start_ns)
        self.columns: dict[str, Any] = {name: column[inside] for name, column in found.items()}


class States(StateTimes):
    """The states and phases of all lanes during some steps, and how they are nested.

    With `spans_of`, the phases and outer spans of that role instead.
    """

    def __init__(
        self, cursor: Cursor, steps: list[StepWindow], now_ns: int | None = None, *, spans_of: str | None = None
    ) -> None:
        if spans_of is None:
            super().__init__(cursor, steps, now_ns, columns=_NESTED)
        else:
            super().__init__(cursor, steps, now_ns, columns=_NESTED, condition=_IS_SPAN, role=spans_of)
            parts = ~_is_whole_step(self.columns, steps)
            self.columns = {name: column[parts] for name, column in self.columns.items()}
        self.active = set(np.unique(self.columns["lane_id"]).tolist())
        self.is_phase: NDArray[np.bool_] = self.columns["is_phase"]
        self.stated = set(np.unique(self.columns["lane_id"][~self.is_phase]).tolist())
        """Lanes that have more than session phases."""

    def roles(self) -> set[str]:
        """Return the roles that have states."""
        return {self.lanes[lane_id].role for lane_id in self.active}

    def has_states(self, role: str) -> bool:
        """Return whether a role has more than session phases."""
        return any(self.lanes[lane_id].role == role for lane_id in self.stated)


def _is_whole_step(found: dict[str, Any], steps: list[StepWindow]) -> NDArray[np.bool_]:
    starts = np.array([step.start_ns for step in steps])
    lengths = np.array([(step.end_ns or step.start_ns) - step.start_ns for step in steps])
    middle = (found["start_ns"] + found["end_ns"]) // 2
    of_step = np.maximum(np.searchsorted(starts, middle, "right") - 1, 0)
    whole: NDArray[np.bool_] = found["end_ns"] - found["start_ns"] >= _WHOLE_STEP * lengths[of_step]
    whole &= ~found["is_phase"]
    return whole
