"""Steps of a run without recorded steps: some frameworks only set a gauge to the step.

For example, verl's logger sets `training_global_step` at the end of each step. A step then lasts from when the gauge
got its previous value to when it got the step's number. The start of the first step is its end minus the step time that
the framework reports, or the start of a span that started shortly before and was still running: the framework measures
that time before it logs. Without a reported step time, the first step starts with the first span of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rl_insight.metrics.canonical import canonical_name
from rl_insight.schema.names import normalized
from rl_insight.store.queries.base import Cursor

STEP_COUNTERS: Final = ("training_global_step", "trainer_global_step", "global_step", "rollout_step", "trainer_step")
"""Normalized names of gauges whose value is the step; the first one that a run has counts."""
TOGETHER_NS: Final = 200_000_000
"""Metrics within this time were logged by one call: those around a step counter belong to its step."""

_SECOND = 1_000_000_000
# Nearly all runs have no such gauge, and every query about steps runs this.
_GAUGES = "SELECT series_id, process, name FROM series WHERE kind = 'gauge' AND name ILIKE '%step%'"
_MARKS = """
    SELECT process, value::BIGINT AS step, min(time_ns) AS at_ns FROM sample_data JOIN series USING (series_id)
    WHERE series_id IN (SELECT unnest($series)) AND step IS NULL AND isfinite(value) AND abs(value) < 1e15
    GROUP BY process, value::BIGINT ORDER BY process, at_ns, step
"""
_FIRST_LENGTH = """
    SELECT value FROM sample_data WHERE series_id IN (SELECT unnest($series)) AND abs(time_ns - $at_ns) < $together
        AND value > 0 AND isfinite(value) ORDER BY abs(time_ns - $at_ns) LIMIT 1
"""
_OWN = "(SELECT clock_offset_ns FROM processes WHERE process = $process)"
_FIRST_SPAN = f"""
    SELECT min(start_ns + clock_offset_ns) - {_OWN}
    FROM span_data JOIN lanes USING (lane_id) JOIN processes USING (process)
    WHERE start_ns + clock_offset_ns > $after_ns
"""  # noqa: S608  (constants)
_RUNNING_SPAN = f"""
    SELECT min(start_ns + clock_offset_ns) - {_OWN}
    FROM span_data JOIN lanes USING (lane_id) JOIN processes USING (process)
    WHERE start_ns + clock_offset_ns BETWEEN $at_ns + {_OWN} - $together AND $at_ns + {_OWN}
        AND start_ns + clock_offset_ns + duration_ns > $at_ns + {_OWN}
"""  # noqa: S608  (constants)


class CountedStep(NamedTuple):
    """A step by the counter of a process; nanoseconds of the process's clock."""

    step: int
    process: int
    first_ns: int
    last_ns: int
    """When the counter got the step's number."""


def step_counter(name: str) -> str | None:
    """Return which of `STEP_COUNTERS` a metric is; None for any other.

    >>> step_counter("training/global_step"), step_counter("train/global_step"), step_counter("actor/loss")
    ('training_global_step', 'global_step', None)
    """
    text = normalized(name)
    text = text if text in STEP_COUNTERS else text.removeprefix("train_")
    return text if text in STEP_COUNTERS else None


def counted_steps(cursor: Cursor) -> list[CountedStep]:
    """Return the steps of a counter, by process and time; none if its samples have a step."""
    gauges = cursor.execute(_GAUGES).fetchall()
    by_counter: dict[str, list[int]] = {}
    for series_id, _, name in gauges:
        counter = step_counter(name)
        if counter is not None:
            by_counter.setdefault(counter, []).append(series_id)
    for counter in sorted(by_counter, key=STEP_COUNTERS.index):
        marks = cursor.execute(_MARKS, {"series": by_counter[counter]}).fetchall()
        if marks:
            return _steps(cursor, marks, [gauge for gauge in gauges if canonical_name(gauge[2]) == "step_time"])
    return []


def _steps(
    cursor: Cursor, marks: Sequence[tuple[int, int, int]], times: Sequence[tuple[int, int, str]]
) -> list[CountedStep]:
    found: list[CountedStep] = []
    for process, step, at_ns in marks:
        before = found[-1] if found else None
        if before is not None and before.process == process:
            first_ns = before.last_ns
        else:
            # A resumed run does not start with the spans of its first part.
            after_ns = before.last_ns if before is not None and before.last_ns < at_ns else 0
            own = [series_id for series_id, owner, _ in times if owner == process]
            first_ns = _first_start_ns(cursor, process, at_ns, own) or _first_span_ns(cursor, process, at_ns, after_ns)
        found.append(CountedStep(step, process, first_ns, at_ns))
    return found


def _first_start_ns(cursor: Cursor, process: int, at_ns: int, times: Sequence[int]) -> int | None:
    """Return when the first step of a process started, according to the step time that the framework reports."""
    given = {"series": times, "at_ns": at_ns, "together": TOGETHER_NS}
    rows = cursor.execute(_FIRST_LENGTH, given).fetchall() if times else []
    if not rows:
        return None
    first_ns = at_ns - int(rows[0][0] * _SECOND)
    given = {"process": process, "at_ns": first_ns, "together": TOGETHER_NS}
    ((running_ns,),) = cursor.execute(_RUNNING_SPAN, given).fetchall()
    return first_ns if running_ns is None else int(running_ns)


def _first_span_ns(cursor: Cursor, process: int, at_ns: int, after_ns: int) -> int:
    ((first_ns,),) = cursor.execute(_FIRST_SPAN, {"process": process, "after_ns": after_ns}).fetchall()
    return at_ns if first_ns is None else min(first_ns, at_ns)
