"""How the spans of one name developed: counts, errors and durations by step or time, and an even sample of them.

A look at the newest spans alone would show a change where the sample begins. Here every interval counts all of its
spans, and the single spans to draw are chosen by a hash of their row: every stretch of time loses the same share.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor, Parameters, conditions
from rl_insight.store.queries.intervals import by_group, quantiles
from rl_insight.store.queries.scope import placed
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
    "names": "name_id IN (SELECT unnest($names))",
    "lanes": "lane_id IN (SELECT unnest($lanes))",
    "first_step": "step >= $first_step",
    "last_step": "step <= $last_step",
    "start_ns": "start_ns + clock_offset_ns >= $start_ns",
    "end_ns": "start_ns + clock_offset_ns < $end_ns",
}
_NAMES = "SELECT name_id FROM names WHERE name = $name"
_AT = {"step": "step", "time": "start_ns + clock_offset_ns"}
# One look at all spans, narrow columns only; what else is shown of a few of them is read by their rows.
_SPANS = """
    SELECT {x} AS x, duration_ns, status = 'error' AS failed, row_number FROM {spans}
    WHERE {where} AND {x} IS NOT NULL
"""
_SHOWN = """
    SELECT row_number, span_id, lane_id, start_ns + clock_offset_ns, duration_ns, status, step FROM {spans}
    WHERE row_number IN (SELECT unnest($rows::BIGINT[]))
"""
_MIX = np.uint64(0x9E3779B97F4A7C15)


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
        "names": [number for (number,) in cursor.execute(_NAMES, {"name": name}).fetchall()],
        "lanes": lane_ids,
        "first_step": first_step,
        "last_step": last_step,
        "start_ns": start_ns,
        "end_ns": end_ns,
    }
    where, given = conditions(_FRAGMENTS, values)
    needs_steps = axis == "step" or first_step is not None or last_step is not None
    spans = placed(cursor, stepped(cursor, "span_data") if needs_steps else "span_data")
    found = cursor.execute(_SPANS.format(x=_AT[axis], spans=spans, where=where), given).fetchnumpy()
    durations, count = found["duration_ns"], len(found["x"])
    p50, p95, p99 = quantiles(durations, (0.5, 0.95, 0.99)) if count else (None, None, None)
    first, last = (int(found["x"].min()), int(found["x"].max())) if count else (0, 0)
    width = max(1, -(-(last - first + 1) // intervals))
    parts = [(int(number), rows) for number, rows in by_group((found["x"] - first) // width)]
    longest = [int(rows[np.argmax(durations[rows])]) for _, rows in parts]
    sample = _even_sample(found, points) if count and points else []
    shown = _shown(cursor, spans, [int(found["row_number"][row]) for row in {*longest, *sample}])
    return SpanSeries(
        name=name,
        axis=axis,
        width=width,
        count=count,
        errors=int(np.count_nonzero(found["failed"])),
        p50_ns=p50,
        p95_ns=p95,
        p99_ns=p99,
        max_ns=int(durations.max()) if count else None,
        intervals=[
            _interval(first + number * width, durations[rows], found["failed"][rows], shown[found["row_number"][top]])
            for (number, rows), top in zip(parts, longest, strict=True)
        ],
        points=sorted((shown[found["row_number"][row]] for row in sample), key=lambda one: one.start_ns)[:MAX_POINTS],
    )


def _even_sample(found: dict[str, Any], points: int) -> list[int]:
    """Return about so many rows, chosen by a hash: every stretch of time loses the same share."""
    every = -(-len(found["x"]) // points)
    mixed = (found["row_number"].astype(np.uint64) * _MIX) >> np.uint64(32)
    chosen: list[int] = np.flatnonzero(mixed % np.uint64(every) == 0).tolist()
    return chosen


def _shown(cursor: Cursor, spans: str, rows: list[int]) -> dict[int, SpanPoint]:
    found = cursor.execute(_SHOWN.format(spans=spans), {"rows": rows}).fetchall() if rows else []
    return {row: SpanPoint(f"{span_id:016x}", *rest) for row, span_id, *rest in found}


def _interval(x: int, durations: NDArray[Any], failed: NDArray[Any], longest: SpanPoint) -> SpanInterval:
    p50, p95 = quantiles(durations, (0.5, 0.95))
    errors = int(np.count_nonzero(failed))
    return SpanInterval(x, len(durations), errors, p50, p95, longest.duration_ns, longest.span_id)
