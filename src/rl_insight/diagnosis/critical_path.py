"""The critical path of steps: which process they waited for, and how long they would take if it were faster.

The path is walked backward from the end of a step. While the leading role works, the rank that finished last is on the
path; while it waits, the path follows the work of another role that ended the wait, and what preceded it on its lane.
"""

from __future__ import annotations

from functools import partial

import msgspec

from rl_insight.diagnosis.path_suspects import CriticalPath, StepPath, notable, over_steps
from rl_insight.diagnosis.path_walk import Units, Walk
from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.states import StateTimes
from rl_insight.store.queries.step_answers import step_answers
from rl_insight.store.queries.steps import StepWindow, step_windows

MAX_STEPS = 50
_ROW_BYTES = 300
"""The size of a segment or suspect in memory."""


def critical_path(cursor: Cursor, limit: int = 10, *, last: int | None = None) -> CriticalPath:
    """Return the process that each of the last finished steps waited for, and the step time if it were faster.

    With `last`, only steps up to this number. A suspect that explains at least half of the excess is the culprit;
    otherwise there is none, and the suspects are the three that would save the most.

    Raises:
        QueryError: `limit` is out of range.
    """
    if not 1 <= limit <= MAX_STEPS:
        raise QueryError(f"limit {limit} is out of range: it must be from 1 to {MAX_STEPS}.")
    role, windows = step_windows(cursor)
    chosen = [one for one in windows if one.end_ns is not None and (last is None or one.step <= last)][-limit:]
    if not chosen:
        return CriticalPath(role, [], 0.0, [], None)
    found = step_answers(cursor, "critical_path", role, chosen, partial(_paths, cursor, role), _size_bytes)
    shown = [msgspec.structs.replace(path, suspects=notable(path.suspects)) for path in found]
    return CriticalPath(role, shown, *over_steps(found))


def _paths(cursor: Cursor, role: str, windows: list[StepWindow]) -> list[StepPath]:
    states = StateTimes(cursor, windows)
    units = Units(states.lanes)
    return [Walk(states, units, role, window).path() for window in windows]


def _size_bytes(path: StepPath) -> int:
    return _ROW_BYTES * (1 + len(path.segments) + len(path.suspects))
