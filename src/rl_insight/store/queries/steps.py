"""Training steps: when each was, and where its time went."""

from __future__ import annotations

import msgspec
import numpy as np

from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor, structs
from rl_insight.store.queries.intervals import by_group, union_ns

MAX_STEPS = 1_000


class Step(msgspec.Struct, frozen=True):
    """A training step, from the first thing recorded under it to the last; aligned nanoseconds."""

    step: int
    start_ns: int
    end_ns: int
    spans: int
    errors: int


class StepTime(msgspec.Struct, frozen=True):
    """How long a state or phase ran on a lane during a step."""

    step: int
    lane_id: int
    name: str
    wall_ns: int
    """The union of its intervals."""
    count: int


class StepMetric(msgspec.Struct, frozen=True):
    """A gauge during a step, over all its series."""

    step: int
    name: str
    average: float
    last: float


_STEPS = """
    WITH by_lane AS (
        -- Per lane first: aligning a few sums is cheaper than aligning every span.
        SELECT step, lane_id, min(start_ns) AS first_ns, max(start_ns + duration_ns) AS last_ns, count(*) AS spans,
            count(*) FILTER (status = 'error') AS errors
        FROM span_data WHERE step IS NOT NULL GROUP BY step, lane_id
    )
    SELECT step, min(first_ns + clock_offset_ns), max(last_ns + clock_offset_ns),
        sum(spans)::BIGINT, sum(errors)::BIGINT
    FROM by_lane JOIN lanes USING (lane_id) JOIN processes USING (process)
    GROUP BY step ORDER BY step DESC LIMIT $limit
"""
_SPANS = """
    SELECT step, lane_id, name_id, start_ns, duration_ns FROM span_data
    WHERE step >= $first AND step <= $last AND {segment}
"""
_SEGMENTS = {True: "segment IN ('state_interval', 'state_nested', 'phase')", False: "true"}
_METRICS = """
    SELECT step, name, avg(value), arg_max(value, time_ns)
    FROM sample_data JOIN series USING (series_id)
    WHERE kind = 'gauge' AND step >= $first AND step <= $last
    GROUP BY step, name ORDER BY step, name
"""


def steps(cursor: Cursor, limit: int = 200) -> list[Step]:
    """Return the latest steps, in order."""
    if not 1 <= limit <= MAX_STEPS:
        raise QueryError(f"limit {limit} is out of range: it must be from 1 to {MAX_STEPS}.")
    return structs(cursor, Step, _STEPS, {"limit": limit})[::-1]


def step_times(cursor: Cursor, first: int, last: int, *, states_only: bool = True) -> list[StepTime]:
    """Return how long each state and phase (or, without `states_only`, each span name) ran on each lane by step."""
    _check(first, last)
    sql = _SPANS.format(segment=_SEGMENTS[states_only])
    found = cursor.execute(sql, {"first": first, "last": last}).fetchnumpy()
    if not len(found["step"]):
        return []
    names = dict(cursor.execute("SELECT name_id, name FROM names").fetchall())
    lanes, widest = int(found["lane_id"].max()) + 1, int(found["name_id"].max()) + 1
    step = np.asarray(found["step"], np.int64) - first
    groups = (step * lanes + found["lane_id"]) * widest + found["name_id"]
    times = []
    for group, rows in by_group(groups):
        place, name_id = divmod(group, widest)
        number, lane_id = divmod(place, lanes)
        starts = found["start_ns"][rows]
        wall = union_ns(starts, starts + found["duration_ns"][rows])
        times.append(StepTime(number + first, lane_id, names[name_id], wall, len(rows)))
    return times


def step_metrics(cursor: Cursor, first: int, last: int) -> list[StepMetric]:
    """Return every gauge that was recorded under the steps."""
    _check(first, last)
    return structs(cursor, StepMetric, _METRICS, {"first": first, "last": last})


def _check(first: int, last: int) -> None:
    if not 0 <= last - first < MAX_STEPS or not -(2**62) < first <= last < 2**62:
        raise QueryError(f"steps {first} to {last} are out of range: ask for at most {MAX_STEPS} steps, in order.")
