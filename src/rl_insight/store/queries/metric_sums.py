"""Metrics in intervals that can be merged exactly: sums, counts and extremes instead of averages and rates."""

from __future__ import annotations

from typing import Any

import msgspec

from rl_insight.metrics import GAUGE, KINDS
from rl_insight.schema.json_values import json_form
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.metrics import _CHOSEN, _INCREASE, _VALUES, Axis, Chosen, check_range, on_axis, series_of

Values = list[float | str | None]
"""Values that JSON lacks are the strings `NaN`, `Infinity` and `-Infinity`."""


class SeriesSums(msgspec.Struct, frozen=True, kw_only=True):
    """One series, or all of a metric together, in intervals. Intervals without values are left out."""

    labels: dict[str, str]
    process: dict[str, str]
    """The labels of the process that recorded it."""
    x: list[int]
    """The start of each interval: aligned nanoseconds, or a step."""
    sum: Values
    """Of a gauge's values; of a counter, its increase."""
    count: list[int] | None = None
    """Of a gauge's values; None if there is one in each interval, which is then also the smallest and the largest."""
    min: Values | None = None
    max: Values | None = None


_GAUGE = """
    SELECT line, x, sum(value), count(*), min(value), max(value) FROM points GROUP BY line, x ORDER BY line, x
"""


def metric_sums(
    cursor: Cursor, metric: str, *, start_ns: int, end_ns: int, width: int, axis: Axis, is_apart: bool
) -> list[SeriesSums]:
    """Return a gauge or counter in intervals, by series, or with all series together in one line."""
    check_range(start_ns, end_ns, width, axis)
    kind, series = series_of(cursor, metric)
    if not series:
        return []
    places = [({name: value for name, value in one.process.items() if value}, one.labels) for one in series]
    labels = [own for _, own in places] if is_apart else [{}]
    processes = [process for process, _ in places] if is_apart else [{}]
    numbers = list(range(len(series))) if is_apart else [0] * len(series)
    chosen = Chosen(kind, [one.series_id for one in series], numbers, [one.offset_ns for one in series], labels)
    is_counter = KINDS.get(kind, GAUGE).aggregation == "rate"
    template = _INCREASE if is_counter else _VALUES + _GAUGE
    parameters = chosen.parameters() | {"start": start_ns, "end": end_ns, "width": width}
    rows = cursor.execute(_CHOSEN + template.format(**on_axis(cursor, "sample_data", axis)), parameters).fetchall()
    lines: list[list[tuple[Any, ...]]] = [[] for _ in labels]
    for line, *values in rows:
        lines[line].append(tuple(values))
    return [_sums(labels[line], processes[line], found) for line, found in enumerate(lines) if found]


def _sums(labels: dict[str, str], process: dict[str, str], rows: list[tuple[Any, ...]]) -> SeriesSums:
    x, total, *more = (list(column) for column in zip(*rows, strict=True))
    line = SeriesSums(labels=labels, process=process, x=x, sum=json_form(total))
    if not more or all(count == 1 for count in more[0]):
        return line
    count, least, most = more
    return msgspec.structs.replace(line, count=count, min=json_form(least), max=json_form(most))
