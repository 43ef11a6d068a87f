"""Training steps: their times and metrics.

A step has one definition, used everywhere: see `step_definition`. Other roles than the leading one may work ahead or
finish late, which does not move a step. A run has ended when its processes have exited or fallen silent. A run whose
spans have no steps has those of its step counter (see `step_counters`) or of its metrics.

Records without a step in a run with such a counter belong to the step at their time.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from rl_insight.intake import liveness
from rl_insight.schema.tables import LAST_TIME_NS
from rl_insight.store.errors import QueryError
from rl_insight.store.frame import Frame, FrameStream, column_of
from rl_insight.store.queries.base import INTEGER_LIMIT, Cursor, Parameters, structs
from rl_insight.store.queries.step_counters import CountedStep, counted_steps
from rl_insight.store.queries.step_definition import (
    LEADS,
    TOGETHER_NS,
    Extent,
    Lifetime,
    generations,
    leadership,
    leading_role,
    running_until_ns,
)
from rl_insight.store.rollup import rolled_up_rows
from rl_insight.store.tables import LANE_CLOCK, SERIES_CLOCK, TIMES

MAX_STEPS = 1_000


class Step(msgspec.Struct, frozen=True):
    """A training step, from its start to the start of the next one; aligned nanoseconds."""

    step: int
    start_ns: int
    end_ns: int | None
    """None while it is running."""
    spans: int
    """Ended spans of this step, of all roles."""
    errors: int


class StepMetric(msgspec.Struct, frozen=True):
    """A gauge during a step, over all its series."""

    step: int
    name: str
    average: float
    last: float


class StepWindow(NamedTuple):
    """When a step was; aligned nanoseconds."""

    step: int
    start_ns: int
    end_ns: int | None
    """None while it is running."""


class _Seen(NamedTuple):
    """A step as the processes of a role that ran at the same time recorded it."""

    role: str
    generation: int
    """See `step_definition.generations`."""
    step: int
    first_ns: int
    last_ns: int


_ROLES = "SELECT DISTINCT role FROM processes"
_LAST_SEEN = "SELECT role, heartbeat_s, max(last_seen_ns) FROM processes WHERE NOT final GROUP BY role, heartbeat_s"


class _StepRecords(NamedTuple):
    """Records of steps: `step`, the lane or process, `first_ns` and `last_ns`."""

    sql: str
    key: str
    members: str
    """The lanes or processes, with their process."""


_EVERY_PROCESS = "(SELECT process FROM processes)"
# Most spans are already summed by step and lane, see `rollup`.
_SPANS = _StepRecords(
    """
    SELECT step, lane_id, first_ns, last_ns FROM step_spans
    UNION ALL
    SELECT step, lane_id, start_ns, start_ns + duration_ns
    FROM span_data WHERE rowid >= $rolled_up AND step IS NOT NULL
    UNION ALL
    SELECT step, lane_id, start_ns, start_ns FROM open_span_data WHERE step IS NOT NULL
    """,
    "lane_id",
    "lanes",
)
_SAMPLES = _StepRecords(
    """
    SELECT step, process, min(time_ns) AS first_ns, max(time_ns) AS last_ns
    FROM sample_data JOIN series USING (series_id) WHERE step IS NOT NULL GROUP BY step, process
    """,
    "process",
    _EVERY_PROCESS,
)
_COUNTED = _StepRecords("SELECT step, process, first_ns, last_ns FROM counted_steps", "process", _EVERY_PROCESS)
# Summed before they are joined: with ten thousand lanes, a join of every row would take as long as the rest.
_LIFETIMES = """
    SELECT role, process, rank, started_ns + clock_offset_ns, first_ns + clock_offset_ns, last_ns + clock_offset_ns,
        CASE WHEN NOT final AND delay_ns IS NOT NULL THEN last_seen_ns END, heartbeat_s
    FROM (
        SELECT process, min(first_ns) AS first_ns, max(last_ns) AS last_ns FROM (
            SELECT {key}, min(first_ns) AS first_ns, max(last_ns) AS last_ns FROM ({recorded}) GROUP BY {key}
        ) JOIN {members} USING ({key}) GROUP BY process
    ) JOIN processes USING (process) WHERE list_contains($roles, role)
"""
_SEEN = """
    SELECT role, generation, step, min(first_ns + clock_offset_ns), max(last_ns + clock_offset_ns)
    FROM ({recorded}) JOIN (
        SELECT {key}, role, generation, clock_offset_ns
        FROM {members} JOIN generations USING (process) JOIN processes USING (process)
    ) USING ({key})
    GROUP BY role, generation, step ORDER BY role, generation, min(first_ns + clock_offset_ns), step
"""
_COUNTS = """
    SELECT step, count(*), count(*) FILTER (status = 'error') FROM {spans}
    WHERE step >= $first AND step <= $last GROUP BY step
"""
_ROLLED_UP_COUNTS = """
    SELECT step, sum(spans)::BIGINT, sum(errors)::BIGINT FROM (
        SELECT step, spans, errors FROM step_spans
        UNION ALL
        SELECT step, count(*), count(*) FILTER (status = 'error') FROM span_data WHERE rowid >= $rolled_up GROUP BY step
    ) WHERE step >= $first AND step <= $last GROUP BY step
"""
_METRICS = """
    SELECT step, name, avg(value), arg_max(value, time_ns)
    FROM {samples} JOIN series USING (series_id)
    WHERE kind = 'gauge' AND step >= $first AND step <= $last
    GROUP BY step, name ORDER BY step, name
"""
_FILLED = """(
    SELECT * EXCLUDE (at_ns, counted, begins_ns, ends_ns)
        REPLACE (coalesce(step, CASE WHEN at_ns < ends_ns THEN counted END) AS step)
    FROM (SELECT {table}.*, {table}.rowid, {time} + clock_offset_ns AS at_ns FROM {table} {clock})
    ASOF LEFT JOIN {windows} ON at_ns >= begins_ns
)"""


def steps(cursor: Cursor, limit: int = 200, *, last: int | None = None, now_ns: int | None = None) -> list[Step]:
    """Return the latest steps, in order; with `last`, only those up to this number.

    A step lasts until the leading role starts the next one; the last step of a run that has ended lasts until that
    role's last record.
    """
    if not 1 <= limit <= MAX_STEPS:
        raise QueryError(f"limit {limit} is out of range: it must be from 1 to {MAX_STEPS}.")
    windows = step_windows(cursor, now_ns)[1]
    windows = [window for window in windows if last is None or window.step <= last][-limit:]
    counts = span_counts(cursor, windows)
    return [Step(*window, *counts.get(window.step, (0, 0))) for window in windows]


def span_counts(cursor: Cursor, windows: Sequence[StepWindow]) -> dict[int, tuple[int, int]]:
    """Return the number of ended spans and of failed ones, of all roles, by step; without steps that have none."""
    numbers = {window.step for window in windows}
    if not numbers:
        return {}
    given = {"first": min(numbers), "last": max(numbers)}
    spans = stepped(cursor, "span_data")
    if spans == "span_data":
        rows = cursor.execute(_ROLLED_UP_COUNTS, given | {"rolled_up": rolled_up_rows(cursor)}).fetchall()
    else:
        rows = cursor.execute(_COUNTS.format(spans=spans), given).fetchall()
    return {step: (spans, errors) for step, spans, errors in rows if step in numbers}


def step_windows(cursor: Cursor, now_ns: int | None = None) -> tuple[str, list[StepWindow]]:
    """Return the leading role, and the times of all steps, in order of start."""
    now_ns = time.time_ns() if now_ns is None else now_ns
    roles = [role for (role,) in cursor.execute(_ROLES).fetchall()]
    # Other roles count only if no role is named like a trainer.
    seen = _seen(cursor, _SPANS, [role for role in roles if leadership(role) == LEADS], now_ns)
    if not seen and (counted := counted_steps(cursor)):
        return _counted_windows(cursor, counted, now_ns)
    seen = seen or _seen(cursor, _SPANS, roles, now_ns)
    has_spans = bool(seen)
    seen = seen or _seen(cursor, _SAMPLES, roles, now_ns)
    if not seen:
        return "", []
    role = _leading_role(seen)
    # Metrics alone do not show how long the last step took.
    has_last_end = has_spans and role not in live_roles(cursor, now_ns)
    found = _windows([one for one in seen if one.role == role], has_ends=has_spans, has_last_end=has_last_end)
    return role, found


def finished_steps(cursor: Cursor, first: int, last: int, now_ns: int | None = None) -> tuple[str, list[StepWindow]]:
    """Return the leading role, and the finished steps from `first` to `last`."""
    check_steps(first, last)
    role, found = step_windows(cursor, now_ns)
    return role, [one for one in found if first <= one.step <= last and one.end_ns is not None]


def step_range(cursor: Cursor) -> tuple[int | None, int | None]:
    """Return the first and the last step of a run; roles other than the leading one may be ahead."""
    numbers = [window.step for window in step_windows(cursor)[1]]
    return min(numbers, default=None), max(numbers, default=None)


def live_roles(cursor: Cursor, now_ns: int) -> set[str]:
    """Return the roles that have a live process at a time of the server's clock."""
    return {
        role
        for role, heartbeat_s, last_seen_ns in cursor.execute(_LAST_SEEN).fetchall()
        if liveness(final=False, last_seen_ns=last_seen_ns, heartbeat_s=heartbeat_s, now_ns=now_ns) == "live"
    }


def _counted_windows(cursor: Cursor, counted: list[CountedStep], now_ns: int) -> tuple[str, list[StepWindow]]:
    """Return the role of the process that counts the steps, and their times; all of them have ended."""
    columns = zip(CountedStep._fields, zip(*counted, strict=True), strict=True)
    cursor.register("counted_steps", _integers(dict(columns)))
    seen = _seen(cursor, _COUNTED, [role for (role,) in cursor.execute(_ROLES).fetchall()], now_ns)
    role = _leading_role(seen)
    return role, _windows([one for one in seen if one.role == role], has_ends=True, has_last_end=True)


def _seen(cursor: Cursor, source: _StepRecords, roles: list[str], now_ns: int) -> list[_Seen]:
    """Return the steps of some roles, from a source."""
    if not roles:
        return []
    given: Parameters = {"rolled_up": rolled_up_rows(cursor)} if source is _SPANS else {}
    lifetimes = cursor.execute(_of(source, _LIFETIMES), given | {"roles": roles}).fetchall()
    if not lifetimes:
        return []
    by_role: dict[str, list[Lifetime]] = {}
    for role, process, rank, started_ns, first_ns, last_ns, heard_ns, heartbeat_s in lifetimes:
        until_ns = None if heard_ns is None else running_until_ns(heard_ns, heartbeat_s, now_ns)
        by_role.setdefault(role, []).append(Lifetime(process, rank, started_ns, first_ns, last_ns, until_ns))
    found = {process: place for some in by_role.values() for process, place in generations(some).items()}
    cursor.register("generations", _integers({"process": list(found), "generation": list(found.values())}))
    return [_Seen(*row) for row in cursor.execute(_of(source, _SEEN), given).fetchall()]


def _of(source: _StepRecords, sql: str) -> str:
    return sql.format(recorded=source.sql, key=source.key, members=source.members)


def _leading_role(seen: Iterable[_Seen]) -> str:
    by_role: dict[str, dict[tuple[int, int], Extent]] = {}
    for one in seen:
        by_role.setdefault(one.role, {})[one.generation, one.step] = (one.first_ns, one.last_ns)
    return leading_role(by_role)


def _windows(seen: list[_Seen], *, has_ends: bool, has_last_end: bool) -> list[StepWindow]:
    """Return the times of the leading role's steps; for a step that a resumed run repeated, the last time.

    Args:
        seen: The steps of the role.
        has_ends: Whether the last record of a generation is the end of its last step.
        has_last_end: The same for the last generation.
    """
    found: dict[int, StepWindow] = {}
    last_generation = max(one.generation for one in seen)
    for generation in range(last_generation + 1):
        members = [one for one in seen if one.generation == generation]
        starts = [one.first_ns for one in members]
        end_ns = max(one.last_ns for one in members)
        has_end = has_last_end if generation == last_generation else has_ends
        is_open = not has_end or end_ns <= starts[-1]
        for one, end in zip(members, [*starts[1:], None if is_open else end_ns], strict=True):
            found[one.step] = StepWindow(one.step, one.first_ns, end)
    return sorted(found.values(), key=lambda one: (one.start_ns, one.step))


def step_metrics(cursor: Cursor, first: int, last: int) -> list[StepMetric]:
    """Return every gauge by step."""
    check_steps(first, last)
    sql = _METRICS.format(samples=stepped(cursor, "sample_data"))
    return structs(cursor, StepMetric, sql, {"first": first, "last": last})


def counted_windows(cursor: Cursor) -> list[StepWindow]:
    """Return the steps of the run's step counter, in order; empty for runs without one."""
    counted = counted_steps(cursor)
    return sorted(_counted_windows(cursor, counted, time.time_ns())[1], key=lambda one: one.start_ns) if counted else []


def counted_step(windows: Sequence[StepWindow], time_ns: int) -> int | None:
    """Return the step at an aligned time, for records without a step.

    >>> counted_step([StepWindow(7, 100, 200), StepWindow(8, 200, 300)], 200)
    8
    """
    place = bisect_right(windows, time_ns, key=lambda one: one.start_ns) - 1
    if place < 0 or time_ns >= (windows[place].end_ns or windows[place].start_ns):
        return None
    return windows[place].step


def time_of_steps(cursor: Cursor, first: int | None, last: int | None) -> tuple[int, int] | None:
    """Return the time range of some counted steps; None if the run counts none of them."""
    found = [
        one
        for one in counted_windows(cursor)
        if (first is None or one.step >= first) and (last is None or one.step <= last)
    ]
    if not found:
        return None
    return found[0].start_ns, max(one.end_ns or one.start_ns for one in found)


def stepped(cursor: Cursor, table: str) -> str:
    """Return a source for a table with missing steps filled in from the step counter.

    It is the table itself for runs without such a counter.
    """
    windows = counted_windows(cursor)
    if not windows:
        return table
    column, clock = TIMES[table]
    name = "counted_windows" if clock is LANE_CLOCK else "counted_calls"
    starts = [one.start_ns for one in windows]
    ends = [one.end_ns or one.start_ns for one in windows]
    if clock is SERIES_CLOCK:
        # One call logs many metrics, some of them after the counter.
        slack = [
            min(TOGETHER_NS, (after - end) // 10 + 1)
            for end, after in zip(ends, [*ends[1:], LAST_TIME_NS], strict=True)
        ]
        later = dict(zip(ends, slack, strict=True))
        starts = [start + later.get(start, 0) for start in starts]
        ends = [end + late for end, late in zip(ends, slack, strict=True)]
    columns = {"counted": [one.step for one in windows], "begins_ns": starts, "ends_ns": ends}
    cursor.register(name, _integers(columns))
    return _FILLED.format(table=table, time=column, clock=clock, windows=name)


def _integers(columns: Mapping[str, Sequence[int | None]]) -> FrameStream:
    return FrameStream([Frame({name: column_of(values, np.int64) for name, values in columns.items()})])


def stepped_spans(cursor: Cursor) -> dict[str, str]:
    """Return the sources of ended and open spans, as `stepped` does."""
    return {"ended": stepped(cursor, "span_data"), "opened": stepped(cursor, "open_span_data")}


def check_steps(first: int, last: int) -> None:
    """Refuse a range of steps that is empty or too long, with a `QueryError`."""
    if not 0 <= last - first < MAX_STEPS or not -INTEGER_LIMIT < first <= last < INTEGER_LIMIT:
        raise QueryError(f"steps {first} to {last} are out of range: ask for at most {MAX_STEPS} steps, in order.")
