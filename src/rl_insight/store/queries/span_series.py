"""The spans of one name over steps or time: counts, errors, durations, and an even sample.

A sample of only the newest spans would show a change where it starts. Here every interval counts all of its spans, and
the individual spans to draw are chosen by a hash of their row, which is even over time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor, Parameters, conditions
from rl_insight.store.queries.intervals import by_group, quantiles
from rl_insight.store.queries.measures import MAX_ROWS, SHARES, in_slices, share_of_lengths
from rl_insight.store.queries.scope import placed
from rl_insight.store.queries.steps import stepped

SeriesAxis = Literal["step", "time"]
MAX_INTERVALS = 2_000
MAX_POINTS = 10_000


class SpanInterval(msgspec.Struct, frozen=True):
    """The finished spans that began in one interval."""

    x: int
    """The first step of the interval, or its start in aligned nanoseconds."""
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
    """An even sample, by start; all of them if there are few."""


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
# One scan of all spans with narrow columns only; the other columns are read for a few rows.
_SPANS = """
    SELECT {x} AS x, duration_ns, status = 'error' AS failed, row_number FROM {spans}
    WHERE {where} AND {x} IS NOT NULL
"""
_EXTENT = "SELECT count(*), min(x), max(x) FROM ({rows})"
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
    """Return how the finished spans of a name developed, in at most `intervals` intervals of steps or time.

    Spans that started in `start_ns` to `end_ns` count; about `points` of them are returned as a sample.
    """
    if axis not in _AXES:
        raise QueryError(f"axis {axis!r} is unknown: it must be one of {', '.join(_AXES)}.")
    if not 1 <= intervals <= MAX_INTERVALS or not 0 <= points <= MAX_POINTS:
        raise QueryError(f"use 1 to {MAX_INTERVALS} intervals and 0 to {MAX_POINTS} points.")
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
    rows = _SPANS.format(x=_AT[axis], spans=spans, where=where)

    def execute(sql: str, **more: Any) -> Cursor:
        return cursor.execute(sql, given | more)

    ((count, first, last),) = execute(_EXTENT.format(rows=rows)).fetchall()
    width = max(1, -(-((last or 0) - (first or 0) + 1) // intervals))
    every = -(-count // points) if points else 0
    parts: list[_Part] = []
    shares: Sequence[float | None] = [None] * len(SHARES)
    if 0 < count <= MAX_ROWS:
        found = execute(rows).fetchnumpy()
        parts = list(_parts(found, first, width, every))
        shares = quantiles(found["duration_ns"], SHARES)
    elif count:
        slices = in_slices(execute, rows, "x", (first, last), width)
        parts = [part for found in slices for part in _parts(found, first, width, every)]
        shares = share_of_lengths(execute, rows, count)
    shown = _shown(cursor, spans, list({row for part in parts for row in (part.longest_row, *part.sample)}))
    p50, p95, p99 = shares
    return SpanSeries(
        name=name,
        axis=axis,
        width=width,
        count=count,
        errors=sum(part.errors for part in parts),
        p50_ns=p50,
        p95_ns=p95,
        p99_ns=p99,
        max_ns=max((part.longest for part in parts), default=None),
        intervals=[part.interval(shown) for part in parts],
        points=sorted((shown[row] for part in parts for row in part.sample), key=_begun)[:MAX_POINTS],
    )


class _Part(NamedTuple):
    """The spans of one interval."""

    x: int
    spans: int
    errors: int
    shares: list[float]
    longest: int
    longest_row: int
    sample: list[int]
    """Rows of single spans to show."""

    def interval(self, shown: dict[int, SpanPoint]) -> SpanInterval:
        """Return the interval with its longest span."""
        p50, p95 = self.shares
        return SpanInterval(self.x, self.spans, self.errors, p50, p95, self.longest, shown[self.longest_row].span_id)


def _parts(found: dict[str, Any], first: int, width: int, every: int) -> Iterator[_Part]:
    """Yield the intervals of a slice, with one in `every` spans as their sample."""
    durations, numbers = found["duration_ns"], found["row_number"]
    is_chosen = _is_chosen(numbers, every)
    for number, rows in by_group((found["x"] - first) // width):
        lengths = durations[rows]
        longest = lengths.max()
        yield _Part(
            first + number * width,
            len(rows),
            int(np.count_nonzero(found["failed"][rows])),
            quantiles(lengths, (0.5, 0.95)),
            int(longest),
            int(numbers[rows[lengths == longest]].min()),  # the same one, regardless of row order
            numbers[rows[is_chosen[rows]]].tolist(),
        )


def _begun(point: SpanPoint) -> tuple[int, str]:
    return point.start_ns, point.span_id


def _is_chosen(row_numbers: NDArray[Any], every: int) -> NDArray[np.bool_]:
    """Return which rows are in the sample, chosen by a hash, which is even over time."""
    if not every:
        return np.zeros(len(row_numbers), bool)
    mixed = (row_numbers.astype(np.uint64) * _MIX) >> np.uint64(32)
    chosen: NDArray[np.bool_] = mixed % np.uint64(every) == 0
    return chosen


def _shown(cursor: Cursor, spans: str, rows: list[int]) -> dict[int, SpanPoint]:
    found = cursor.execute(_SHOWN.format(spans=spans), {"rows": rows}).fetchall() if rows else []
    return {row: SpanPoint(f"{span_id:016x}", *rest) for row, span_id, *rest in found}
