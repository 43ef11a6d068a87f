"""Training steps: when each was, and the metrics recorded under it.

A step has one definition, used everywhere. The role that leads the steps is the trainer, by whatever name. A step
begins with the first thing that this role records under it and lasts until the role begins the next one; the last step
of a run that has ended lasts until the role's last record. Other roles may work ahead or finish late: that moves no
step. A run whose spans carry no steps has those of its metrics.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import msgspec

from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor, structs
from rl_insight.store.queries.summary import processes

MAX_STEPS = 1_000
_OVERLAP = 0.05
"""A role whose steps overlap by more of their time than this works on several steps at once: it follows."""
_LEADING = re.compile(r"train|learn|driver|controller|actor|main", re.IGNORECASE)


class Step(msgspec.Struct, frozen=True):
    """A training step, from its beginning to the beginning of the next one; aligned nanoseconds."""

    step: int
    start_ns: int
    end_ns: int | None
    """None while it is running."""
    spans: int
    """Spans that ended under it, of all roles."""
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
    """Processes that began after all earlier ones of their role had ended are a new generation: the run resumed."""
    step: int
    first_ns: int
    last_ns: int


_ROLES = "SELECT DISTINCT role FROM processes"
_LANES = "lane_id IN (SELECT lane_id FROM lanes JOIN processes USING (process) WHERE list_contains($roles, role))"
# Per lane first: aligning a few sums is cheaper than aligning every span.
_SPANS = f"""
    SELECT step, process, min(first_ns) AS first_ns, max(last_ns) AS last_ns FROM (
        SELECT step, lane_id, min(start_ns) AS first_ns, max(start_ns + duration_ns) AS last_ns
        FROM span_data WHERE step IS NOT NULL AND {_LANES} GROUP BY step, lane_id
        UNION ALL
        SELECT step, lane_id, min(start_ns), max(start_ns)
        FROM open_span_data WHERE step IS NOT NULL AND {_LANES} GROUP BY step, lane_id
    ) JOIN lanes USING (lane_id) GROUP BY step, process
"""  # noqa: S608  (constants)
_SAMPLES = """
    SELECT step, process, min(time_ns) AS first_ns, max(time_ns) AS last_ns
    FROM sample_data JOIN series USING (series_id) WHERE step IS NOT NULL GROUP BY step, process
"""
_SEEN = """
    WITH by_process AS MATERIALIZED (
        SELECT step, process, role, first_ns + clock_offset_ns AS first_ns, last_ns + clock_offset_ns AS last_ns
        FROM ({by_process}) JOIN processes USING (process) WHERE list_contains($roles, role)
    ),
    lives AS (
        SELECT process, role, min(first_ns) AS born_ns, max(last_ns) AS died_ns FROM by_process GROUP BY process, role
    ),
    marked AS (
        SELECT process, role, born_ns, born_ns > max(died_ns) OVER (
            PARTITION BY role ORDER BY born_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS is_new
        FROM lives
    ),
    generations AS (
        SELECT process, role, sum(coalesce(is_new, false)::INTEGER) OVER (
            PARTITION BY role ORDER BY born_ns ROWS UNBOUNDED PRECEDING)::BIGINT AS generation
        FROM marked
    )
    SELECT role, generation, step, min(first_ns), max(last_ns)
    FROM by_process JOIN generations USING (process, role)
    GROUP BY role, generation, step ORDER BY role, generation, min(first_ns), step
"""
_COUNTS = """
    SELECT step, count(*), count(*) FILTER (status = 'error') FROM span_data
    WHERE step >= $first AND step <= $last GROUP BY step
"""
_METRICS = """
    SELECT step, name, avg(value), arg_max(value, time_ns)
    FROM sample_data JOIN series USING (series_id)
    WHERE kind = 'gauge' AND step >= $first AND step <= $last
    GROUP BY step, name ORDER BY step, name
"""


def steps(cursor: Cursor, limit: int = 200, *, last: int | None = None, now_ns: int | None = None) -> list[Step]:
    """Return the steps that began last, in order; with `last`, of those up to this number."""
    if not 1 <= limit <= MAX_STEPS:
        raise QueryError(f"limit {limit} is out of range: it must be from 1 to {MAX_STEPS}.")
    windows = step_windows(cursor, now_ns)[1]
    windows = [window for window in windows if last is None or window.step <= last][-limit:]
    if not windows:
        return []
    numbers = [window.step for window in windows]
    rows = cursor.execute(_COUNTS, {"first": min(numbers), "last": max(numbers)}).fetchall()
    counts = {step: (spans, errors) for step, spans, errors in rows}
    return [Step(*window, *counts.get(window.step, (0, 0))) for window in windows]


def step_windows(cursor: Cursor, now_ns: int | None = None) -> tuple[str, list[StepWindow]]:
    """Return the role that leads the steps, and when each step was, in the order of their beginning."""
    seen = _seen(cursor)
    if not seen:
        return "", []
    role = _leading_role(seen)
    now_ns = time.time_ns() if now_ns is None else now_ns
    is_running = any(one.role == role and one.state == "live" for one in processes(cursor, now_ns))
    found = _windows([one for one in seen if one.role == role], is_running=is_running)
    return role, sorted(found, key=lambda one: (one.start_ns, one.step))


def _seen(cursor: Cursor) -> list[_Seen]:
    """Return the steps of the roles that may lead them: of spans where they carry any, else of metrics."""
    roles = [role for (role,) in cursor.execute(_ROLES).fetchall()]
    # Only where no role is named as a trainer are the spans of all others looked at: there may be millions.
    named = [role for role in roles if _LEADING.search(role)]
    for source, among in ((_SPANS, named), (_SPANS, roles), (_SAMPLES, roles)):
        rows = cursor.execute(_SEEN.format(by_process=source), {"roles": among}).fetchall() if among else []
        if rows:
            return [_Seen(*row) for row in rows]
    return []


def _leading_role(seen: Iterable[_Seen]) -> str:
    """Return the role that leads the steps: named as a trainer, and going through one step after the other."""
    by_role: dict[str, list[_Seen]] = {}
    for one in seen:
        by_role.setdefault(one.role, []).append(one)
    return min(by_role, key=lambda role: (_LEADING.search(role) is None, _overlap(by_role[role]) > _OVERLAP, role))


def _overlap(seen: list[_Seen]) -> float:
    """Return the share of its time in which a role worked on more than one step."""
    ordered = sorted(seen, key=lambda one: one.first_ns)
    whole = max(one.last_ns for one in ordered) - ordered[0].first_ns
    overlap = sum(max(0, one.last_ns - other.first_ns) for one, other in pairwise(ordered))
    return overlap / max(1, whole)


def _windows(seen: list[_Seen], *, is_running: bool) -> list[StepWindow]:
    """Return when each step of the leading role was; of a step that a resumed run repeated, the last time counts."""
    found: dict[int, StepWindow] = {}
    last_generation = max(one.generation for one in seen)
    for generation in range(last_generation + 1):
        members = [one for one in seen if one.generation == generation]
        starts = [one.first_ns for one in members]
        end_ns = max(one.last_ns for one in members)
        # Metrics alone do not say how long the last step took.
        is_open = end_ns <= starts[-1] or (is_running and generation == last_generation)
        for one, end in zip(members, [*starts[1:], None if is_open else end_ns], strict=True):
            found[one.step] = StepWindow(one.step, one.first_ns, end)
    return list(found.values())


def step_metrics(cursor: Cursor, first: int, last: int) -> list[StepMetric]:
    """Return every gauge that was recorded under the steps."""
    check_steps(first, last)
    return structs(cursor, StepMetric, _METRICS, {"first": first, "last": last})


def check_steps(first: int, last: int) -> None:
    """Refuse a range of steps that is empty or too long.

    Raises:
        QueryError: it is.
    """
    if not 0 <= last - first < MAX_STEPS or not -(2**62) < first <= last < 2**62:
        raise QueryError(f"steps {first} to {last} are out of range: ask for at most {MAX_STEPS} steps, in order.")
