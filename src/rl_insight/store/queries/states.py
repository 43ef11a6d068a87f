"""The states and phases of all lanes during some steps, as arrays; where a role has none, its spans."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_insight.store.queries.base import IS_STATE, Cursor
from rl_insight.store.queries.recorded import clock_offsets
from rl_insight.store.queries.steps import StepWindow
from rl_insight.store.tables import LANE_CLOCK, LONG_SPAN_NS

_LANES = """
    SELECT lane_id, process, lane, role, process_id, rank, host FROM lanes JOIN processes USING (process)
"""
_STATE_COLUMNS = (
    "lane_id, name_id, depth, segment = 'phase' AS is_phase, span_id, parent_id, start_ns + clock_offset_ns AS start_ns"
)
_IS_SPAN = """(segment = 'phase' OR (segment = 'duration' AND depth <= 2))
    AND lane_id IN (SELECT lane_id FROM lanes JOIN processes USING (process) WHERE role = $role)"""
_WHOLE_STEP = 0.9
"""A span that takes this share of its step is the step itself, which says nothing about where its time went."""
# Short states are found by the time order of the file; long ones may have started much earlier.
_STATES = """
    SELECT {columns}, start_ns + clock_offset_ns + duration_ns AS end_ns FROM span_data {clock}
    WHERE {condition} AND start_ns >= $from_ns AND start_ns < $until_ns AND duration_ns < $long
    UNION ALL
    SELECT {columns}, start_ns + clock_offset_ns + duration_ns FROM span_data {clock}
    WHERE {condition} AND duration_ns >= $long AND start_ns < $until_ns
        AND start_ns + clock_offset_ns + duration_ns > $start_ns
    UNION ALL
    SELECT {columns}, $now_ns::BIGINT FROM open_span_data {clock} WHERE {condition} AND start_ns < $until_ns
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


class States:
    """The states and phases of all lanes during some steps; aligned nanoseconds.

    With `spans_of`, the phases and outer spans of that role instead.
    """

    def __init__(
        self, cursor: Cursor, steps: list[StepWindow], now_ns: int | None = None, *, spans_of: str | None = None
    ) -> None:
        self.start_ns = min(step.start_ns for step in steps)
        self.end_ns = max(step.end_ns or 0 for step in steps)
        least, most = clock_offsets(cursor)
        window: dict[str, int | str] = {
            "from_ns": self.start_ns - most - LONG_SPAN_NS,
            "until_ns": self.end_ns - least,
            "start_ns": self.start_ns,
            "long": LONG_SPAN_NS,
            "now_ns": time.time_ns() if now_ns is None else now_ns,
        }
        if spans_of is not None:
            window["role"] = spans_of
        condition = IS_STATE if spans_of is None else _IS_SPAN
        sql = _STATES.format(columns=_STATE_COLUMNS, clock=LANE_CLOCK, condition=condition)
        found = cursor.execute(sql, window).fetchnumpy()
        inside = (found["start_ns"] < self.end_ns) & (found["end_ns"] > self.start_ns)
        if spans_of is not None:
            inside &= ~_is_whole_step(found, steps)
        self.columns: dict[str, Any] = {name: column[inside] for name, column in found.items()}
        self.lanes = {lane_id: LanePlace(*place) for lane_id, *place in cursor.execute(_LANES).fetchall()}
        self.names: dict[int, str] = dict(cursor.execute(_NAMES).fetchall())
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
