"""Answers about finished steps that are remembered while their run file is open.

They must depend only on the step, the leading role and the times of states (see `states.StateTimes`). Such an answer
stays true until a state that overlaps the step arrives, starts or ends late, the process of an open state falls silent
or reports again, or the clock or the place of a lane is corrected: rows of `span_data` are never changed or deleted, so
what arrived since is found by its row ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from rl_insight.store.memory import memory_of
from rl_insight.store.queries.base import IS_STATE, Cursor
from rl_insight.store.queries.process_ends import LANE_ENDS, register_ends
from rl_insight.store.queries.states import LANES
from rl_insight.store.queries.steps import StepWindow
from rl_insight.store.tables import LANE_CLOCK, ROLLUP_ROWS

Value = TypeVar("Value")

_MOST_ARRIVED: Final = 4 * ROLLUP_ROWS
"""When more spans than this have arrived since an answer, it is computed again: checking them would take as long."""
_SPAN_ROWS = "SELECT count(*) FROM span_data"
_PLACES = f"SELECT count(*), bit_xor(hash(place)) FROM ({LANES}) AS place"  # noqa: S608  (a constant)
_OPEN = f"""
    SELECT span_id, start_ns + clock_offset_ns AS start_ns, until_ns FROM open_span_data {LANE_CLOCK} {LANE_ENDS}
    WHERE {IS_STATE}
"""  # noqa: S608  (constants)
_ARRIVED = f"""
    SELECT arrived AS row, start_ns + clock_offset_ns AS start_ns, start_ns + clock_offset_ns + duration_ns AS end_ns
    FROM (SELECT rowid AS arrived, * FROM span_data WHERE rowid >= $known AND {IS_STATE}) {LANE_CLOCK}
    WHERE start_ns + clock_offset_ns < $until_ns AND start_ns + clock_offset_ns + duration_ns > $since_ns
"""  # noqa: S608  (constants)


class _StepAnswer(NamedTuple):
    value: Any
    span_rows: int
    """How many rows of `span_data` it accounts for."""
    places: tuple[int, int]
    open_states: tuple[int, int, int]


def step_answers(
    cursor: Cursor,
    question: str,
    role: str,
    steps: Sequence[StepWindow],
    compute: Callable[[list[StepWindow]], Sequence[Value]],
    size_bytes: Callable[[Value], int],
) -> list[Value]:
    """Return an answer for each of some finished steps, in order; only those that are not known are computed.

    Args:
        cursor: on the run.
        question: the name under which answers are remembered.
        role: the leading role.
        steps: the steps; all have ended.
        compute: returns the answers for some of the steps.
        size_bytes: about how much memory an answer takes.
    """
    now_ns = time.time_ns()
    memory = memory_of(cursor)
    inputs = _Inputs(cursor, now_ns)
    known = {step: memory.get((question, role, step)) for step in steps}
    found = inputs.still_true({step: answer for step, answer in known.items() if answer is not None})
    missing = [step for step in steps if step not in found]
    if missing:
        found |= dict(zip(missing, compute(missing), strict=True))
    for step, value in found.items():
        if step.end_ns is not None and step.end_ns <= now_ns:  # what is open now ends after the step
            memory.keep((question, role, step), inputs.answer(step, value), size_bytes=size_bytes(value))
    return [found[step] for step in steps]


class _Inputs:
    """What answers depend on, as of the state of the file that a cursor sees."""

    def __init__(self, cursor: Cursor, now_ns: int) -> None:
        self._cursor = cursor
        register_ends(cursor, now_ns)
        ((self._span_rows,),) = cursor.execute(_SPAN_ROWS).fetchall()
        (self._places,) = cursor.execute(_PLACES).fetchall()
        self._open = cursor.execute(_OPEN).fetchnumpy()

    def answer(self, step: StepWindow, value: object) -> _StepAnswer:
        return _StepAnswer(value, self._span_rows, self._places, self._open_states(step))

    def _open_states(self, step: StepWindow) -> tuple[int, int, int]:
        """Return the number of open states of a step, and digests of their ids and of their ends within the step."""
        is_in_step = self._open["start_ns"] < step.end_ns
        ids = self._open["span_id"][is_in_step]
        ends = self._open["until_ns"][is_in_step].clip(max=step.end_ns or step.start_ns)
        return ids.size, int(np.bitwise_xor.reduce(ids)), int(ends.sum())

    def still_true(self, known: dict[StepWindow, _StepAnswer]) -> dict[StepWindow, Any]:
        """Return the values of those answers that are still true."""
        known = {
            step: answer
            for step, answer in known.items()
            if answer.places == self._places
            and answer.open_states == self._open_states(step)
            and 0 <= self._span_rows - answer.span_rows <= _MOST_ARRIVED
        }
        if not known:
            return {}
        given = {
            "known": min(answer.span_rows for answer in known.values()),
            "since_ns": min(step.start_ns for step in known),
            "until_ns": max(step.end_ns or step.start_ns for step in known),
        }
        arrived = self._cursor.execute(_ARRIVED, given).fetchnumpy()
        return {
            step: answer.value
            for step, answer in known.items()
            if not np.any(
                (arrived["row"] >= answer.span_rows)
                & (arrived["start_ns"] < step.end_ns)
                & (arrived["end_ns"] > step.start_ns)
            )
        }
