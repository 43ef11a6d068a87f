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
from rl_insight.schema.tables import LAST_TIME_NS
from rl_insight.store.queries.base import IS_STATE, Cursor, Parameters
from rl_insight.store.queries.step_definition import TOGETHER_NS, first_start_ns
from rl_insight.store.tables import LANE_CLOCK

STEP_COUNTERS: Final = ("training_global_step", "trainer_global_step", "global_step", "rollout_step", "trainer_step")
"""Normalized names of gauges whose value is the step; the first one that a run has counts."""
OF_INTEREST: Final = f"({IS_STATE} OR depth = 0)"
"""States, phases and outermost spans: those that show what a run did."""

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
_SPANS = f"""
    SELECT start_ns + clock_offset_ns AS start_ns, start_ns + clock_offset_ns + duration_ns AS end_ns
    FROM span_data {LANE_CLOCK} WHERE {OF_INTEREST}
    UNION ALL
    SELECT start_ns + clock_offset_ns, {LAST_TIME_NS} FROM open_span_data {LANE_CLOCK} WHERE {OF_INTEREST}
"""  # noqa: S608  (constants)
_FIRST_SPAN = f"SELECT start_ns, end_ns FROM ({_SPANS}) WHERE start_ns > $after_ns ORDER BY start_ns LIMIT 1"  # noqa: S608
_NEAR_SPANS = f"SELECT start_ns, end_ns FROM ({_SPANS}) WHERE start_ns BETWEEN $first_ns AND $last_ns"  # noqa: S608
_OFFSET = "SELECT clock_offset_ns FROM processes WHERE process = $process"


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
            first_ns = _first_start_ns(cursor, process, at_ns, own, after_ns)
        found.append(CountedStep(step, process, first_ns, at_ns))
    return found


def _first_start_ns(cursor: Cursor, process: int, at_ns: int, times: Sequence[int], after_ns: int) -> int:
    """Return when the first step of a process started, by the clock of the process."""
    given: Parameters = {"series": times, "at_ns": at_ns, "together": TOGETHER_NS}
    rows = cursor.execute(_FIRST_LENGTH, given).fetchall() if times else []
    reported_s = float(rows[0][0]) if rows else None
    ((offset_ns,),) = cursor.execute(_OFFSET, {"process": process}).fetchall()
    end_ns = at_ns + offset_ns
    if reported_s is None:
        spans = cursor.execute(_FIRST_SPAN, {"after_ns": after_ns}).fetchnumpy()
    else:
        last_ns = end_ns - int(reported_s * 1e9)
        spans = cursor.execute(_NEAR_SPANS, {"first_ns": last_ns - TOGETHER_NS, "last_ns": last_ns}).fetchnumpy()
    return first_start_ns(end_ns, reported_s, spans["start_ns"], spans["end_ns"]) - int(offset_ns)
