"""The metrics of a report."""

from __future__ import annotations

from typing import Any

from rl_insight.exchange.report.model import MetricLines
from rl_insight.metrics import HISTOGRAM
from rl_insight.store import queries
from rl_insight.store.queries import Cursor, Metric, RunSummary
from rl_insight.store.queries.metrics import PROCESS_LABELS

_POINTS = 240
_MAX_POINTS = 3_000_000
"""The limit for all metrics together; beyond it, a metric is one line over all of its series."""
_MAX_SERIES = 1_000
_SHARES = [0.0, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0]
_SECOND = 1_000_000_000
# The interval widths of the web page, so that both show the same intervals.
_ROUND_NS = [
    *(_SECOND // 10, _SECOND // 5, _SECOND // 2),
    *(seconds * _SECOND for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200)),
]
_DAY_NS = 86_400 * _SECOND


def metric_lines(cursor: Cursor, metrics: list[Metric], run: RunSummary) -> list[MetricLines]:
    """Return every metric over the entire run, by time and by step."""
    if run.start_ns is None or run.end_ns is None:
        return []
    room = _MAX_POINTS
    found = []
    for metric in metrics:
        is_apart = metric.series <= _MAX_SERIES and metric.series * _POINTS <= room
        lines = _lines(cursor, metric, run, run.start_ns, run.end_ns + 1, is_apart=is_apart)
        room -= sum(len(line.x) for line in (*lines.time, *lines.steps))
        found.append(lines)
    return found


def round_width(length_ns: int) -> int:
    """Return a round interval width that gives a readable number of points.

    >>> round_width(3600 * 1_000_000_000)
    15000000000
    """
    wanted = length_ns / _POINTS
    return next(
        (width for width in _ROUND_NS if width >= wanted), max(1, -(-length_ns // _POINTS // _DAY_NS)) * _DAY_NS
    )


def _lines(
    cursor: Cursor, metric: Metric, run: RunSummary, start_ns: int, end_ns: int, *, is_apart: bool
) -> MetricLines:
    width = round_width(end_ns - start_ns)
    step_width = max(1, -(-((run.last_step or 0) - (run.first_step or 0) + 1) // (2 * _POINTS)))
    window = {"start_ns": start_ns // width * width, "end_ns": (end_ns // width + 1) * width}
    by_time: dict[str, Any] = window | {"width": width, "axis": "time"}
    by_step: dict[str, Any] = window | {"width": step_width, "axis": "step"}
    widths: dict[str, Any] = {"name": metric.name, "width_ns": width, "step_width": step_width}
    if metric.kind == HISTOGRAM.name:
        time, steps = (
            queries.quantiles(cursor, metric.name, shares=_SHARES, group_by=[], **axis) for axis in (by_time, by_step)
        )
        time_spread = queries.heat_map(cursor, metric.name, **by_time | {"width": 2 * width})
        step_spread = queries.heat_map(cursor, metric.name, **by_step)
        return MetricLines(**widths, time=time, steps=steps, time_spread=time_spread, step_spread=step_spread)
    group_by = [*metric.labels, *PROCESS_LABELS] if is_apart else []
    time, steps = (
        [line.for_json() for line in queries.range_query(cursor, metric.name, group_by=group_by, **axis)]
        for axis in (by_time, by_step)
    )
    return MetricLines(**widths, time=time, steps=steps)
