"""How the spans of one name developed: counts, errors and durations by step or time, and an even sample of them.

A look at the newest spans alone would show a change where the sample begins. Here every interval counts all of its
spans, and the single spans to draw are chosen by a hash of their id: every stretch of time loses the same share.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor, Parameters, conditions, structs
from rl_insight.store.queries.steps import stepped

SeriesAxis = Literal["step", "time"]
MAX_INTERVALS = 2_000
MAX_POINTS = 10_000


class SpanInterval(msgspec.Struct, frozen=True):
    """The finished spans that began in one interval."""

    x: int
    """The first step of the interval, or its beginning in aligned nanoseconds."""
    count: int
    errors: int
    p50_ns: float
    p95_ns: float
    max_ns: int
    longest_span_id: str


class SpanPoint(msgspec.Struct, frozen=True):
    """A finished span, as a chart of points draws it."""

    span_id: str
    lane_id: int
    start_ns: int
    duration_ns: int
    status: str
    step: int | None


class SpanSeries(msgspec.Struct, frozen=True, kw_only=True):
    """The finished spans of one name by step or time."""

    name: str
    axis: str
    width: int
    """Of an interval, in steps or nanoseconds."""
    count: int
    errors: int
    p50_ns: float | None
    p95_ns: float | None
    p99_ns: float | None
    max_ns: int | None
    intervals: list[SpanInterval]
    points: list[SpanPoint]
    """An even sample, by start; all of them where there are few."""


_AXES = get_args(SeriesAxis)
_FRAGMENTS = {
    "name": "name_id IN (SELECT name_id FROM names WHERE name = $name)",
    "lanes": "lane_id IN (SELECT unnest($lanes))",
    "first_step": "step >= $first_step",
    "last_step": "step <= $last_step",
    "start_ns": "start_ns + clock_offset_ns >= $start_ns",
    "end_ns": "start_ns + clock_offset_ns < $end_ns",
}
_SPANS = """(
    SELECT span_id, lane_id, start_ns + clock_offset_ns AS at_ns, duration_ns, status, step
    FROM {table} JOIN (SELECT lane_id, clock_offset_ns FROM lanes JOIN processes USING (process)) USING (lane_id)
    WHERE {where}
)"""
_EXTENT = """
    SELECT count(*), count(*) FILTER (status = 'error'), min({x}), max({x}),
        quantile_cont(duration_ns, [0.5, 0.95, 0.99]), max(duration_ns)
    FROM {spans} WHERE {x} IS NOT NULL
"""
_INTERVALS = """
    SELECT ({x} - $first) // $width * $width + $first, count(*), count(*) FILTER (status = 'error'),
        quantile_cont(duration_ns, 0.5), quantile_cont(duration_ns, 0.95), max(duration_ns),
        printf('%016x', arg_max(span_id, duration_ns))
    FROM {spans} WHERE {x} IS NOT NULL GROUP BY 1 ORDER BY 1
"""
_POINTS = """
    SELECT printf('%016x', span_id), lane_id, at_ns, duration_ns, status, step FROM {spans}
    WHERE {x} IS NOT NULL AND hash(span_id) % $every = 0 ORDER BY at_ns LIMIT $most
"""


def span_series(
    cursor: Cursor,
    name: str,
    *,
    axis: SeriesAxis = "step",
    intervals: int = 200,
    points: int = 2_000,
    lane_ids: list[int] | None = None,
    first_step: int | None = None,
    last_step: int | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
) -> SpanSeries:
    """Return how the finished spans of a name developed.

    Args:
        cursor: of the run.
        name: the whole name.
        axis: `step` or `time`.
        intervals: at most this many.
        points: about this many single spans.
        lane_ids: only on these lanes.
        first_step: only of this training step or a later one.
        last_step: only of this training step or an earlier one.
        start_ns: begun at this aligned time or later.
        end_ns: begun before this aligned time.
    """
    if axis not in _AXES:
        raise QueryError(f"axis {axis!r} is unknown: it must be one of {', '.join(_AXES)}.")
    if not 1 <= intervals <= MAX_INTERVALS or not 0 <= points <= MAX_POINTS:
        raise QueryError(f"ask for 1 to {MAX_INTERVALS} intervals and 0 to {MAX_POINTS} points.")
    values: Parameters = {
        "name": name,
        "lanes": lane_ids,
        "first_step": first_step,
        "last_step": last_step,
        "start_ns": start_ns,
        "end_ns": end_ns,
    }
    where, given = conditions(_FRAGMENTS, values)
    needs_steps = axis == "step" or first_step is not None or last_step is not None
    table = stepped(cursor, "span_data") if needs_steps else "span_data"
    source = {"spans": _SPANS.format(table=table, where=where), "x": "step" if axis == "step" else "at_ns"}
    ((count, errors, first, last, shares, longest),) = cursor.execute(_EXTENT.format(**source), given).fetchall()
    p50, p95, p99 = shares or (None, None, None)
    width = 1 if first is None else max(1, -(-(last - first + 1) // intervals))
    found = _read(cursor, source, given, first, width) if count else []
    every = max(1, -(-count // max(1, points)))
    more = given | {"every": every, "most": MAX_POINTS}
    sample = structs(cursor, SpanPoint, _POINTS.format(**source), more) if count and points else []
    return SpanSeries(
        name=name,
        axis=axis,
        width=width,
        count=count,
        errors=errors,
        p50_ns=p50,
        p95_ns=p95,
        p99_ns=p99,
        max_ns=longest,
        intervals=found,
        points=sample,
    )


def _read(cursor: Cursor, source: dict[str, Any], given: Parameters, first: int, width: int) -> list[SpanInterval]:
    return structs(cursor, SpanInterval, _INTERVALS.format(**source), given | {"first": first, "width": width})
