"""The states and phases of all lanes in the time of some steps, as arrays."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.recorded import clock_offsets
from rl_insight.store.queries.steps import StepWindow
from rl_insight.store.tables import LANE_CLOCK, LONG_SPAN_NS

_LANES = """
    SELECT lane_id, process, lane, role, process_id, rank, host FROM lanes JOIN processes USING (process)
"""
_STATE_COLUMNS = "lane_id, name_id, depth, span_id, parent_id, start_ns + clock_offset_ns AS start_ns"
_IS_STATE = "segment IN ('state_interval', 'state_nested', 'phase')"
# Short states are found by the time order of the file; long ones may have started much earlier.
_STATES = f"""
    SELECT {_STATE_COLUMNS}, start_ns + clock_offset_ns + duration_ns AS end_ns FROM span_data {LANE_CLOCK}
    WHERE {_IS_STATE} AND start_ns >= $from_ns AND start_ns < $until_ns AND duration_ns < $long
    UNION ALL
    SELECT {_STATE_COLUMNS}, start_ns + clock_offset_ns + duration_ns FROM span_data {LANE_CLOCK}
    WHERE {_IS_STATE} AND duration_ns >= $long AND start_ns < $until_ns
        AND start_ns + clock_offset_ns + duration_ns > $start_ns
    UNION ALL
    SELECT {_STATE_COLUMNS}, $now_ns::BIGINT FROM open_span_data {LANE_CLOCK} WHERE {_IS_STATE} AND start_ns < $until_ns
"""  # noqa: S608  (constants)
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
    """The states and phases of all lanes in the time of some steps; aligned nanoseconds."""

    def __init__(self, cursor: Cursor, steps: list[StepWindow], now_ns: int | None = None) -> None:
        self.start_ns = min(step.start_ns for step in steps)
        self.end_ns = max(step.end_ns or 0 for step in steps)
        least, most = clock_offsets(cursor)
        window = {
            "from_ns": self.start_ns - most - LONG_SPAN_NS,
            "until_ns": self.end_ns - least,
            "start_ns": self.start_ns,
            "long": LONG_SPAN_NS,
            "now_ns": time.time_ns() if now_ns is None else now_ns,
        }
        found = cursor.execute(_STATES, window).fetchnumpy()
        inside = (found["start_ns"] < self.end_ns) & (found["end_ns"] > self.start_ns)
        self.columns: dict[str, Any] = {name: column[inside] for name, column in found.items()}
        self.lanes = {lane_id: LanePlace(*place) for lane_id, *place in cursor.execute(_LANES).fetchall()}
        self.names: dict[int, str] = dict(cursor.execute(_NAMES).fetchall())
        self.active = set(np.unique(self.columns["lane_id"]).tolist())

    def roles(self) -> set[str]:
        """Return the roles that have states."""
        return {self.lanes[lane_id].role for lane_id in self.active}
