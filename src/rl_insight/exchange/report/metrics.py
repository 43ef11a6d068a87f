"""The metrics of a report."""

from __future__ import annotations

from typing import Any

from rl_insight.exchange.report.model import MetricLines
from rl_insight.metrics import HISTOGRAM
from rl_insight.store import queries
from rl_insight.store.queries import Cursor, Metric, RunSummary
from rl_insight.store.queries.metric_sums import metric_sums

POINTS = 240
"""How many intervals the charts of the page have at most, and half of the number of steps."""
_MAX_POINTS = 3_000_000
"""The limit for all metrics together; beyond it, a metric is one line over all of its series."""
_MAX_SERIES = 1_000
SHARES = [0.0, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0]
"""The quantiles that the page offers."""
_SECOND = 1_000_000_000
ROUND_NS = [
    *(_SECOND // 10, _SECOND // 5, _SECOND // 2),
    *(seconds * _SECOND for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200)),
]
"""The interval widths of the page's charts, as far as a report is that precise."""
_DAY_NS = 86_400 * _SECOND


def metric_lines(cursor: Cursor, metrics: list[Metric], run: RunSummary) -> list[MetricLines]:
    """Return every metric over the entire run, by time and by step."""
    if run.start_ns is None or run.end_ns is None:
        return []
    room = _MAX_POINTS
    found = []
    for metric in metrics:
        is_apart = metric.series <= _MAX_SERIES and metric.series * POINTS <= room
        lines = _lines(cursor, metric, run, run.start_ns, run.end_ns + 1, is_apart=is_apart)
        room -= sum(len(line.x) for line in (*lines.time, *lines.steps))
        found.append(lines)
    return found


def round_width(length_ns: int) -> int:
    """Return a round interval width that gives a readable number of points.

    >>> round_width(3600 * 1_000_000_000)
    15000000000
    """
    wanted = length_ns / POINTS
    return next((width for width in ROUND_NS if width >= wanted), max(1, -(-length_ns // POINTS // _DAY_NS)) * _DAY_NS)


def merging_width(width: int) -> int:
    """Return the largest round width up to this one whose intervals can be merged into all wider round ones.

    >>> merging_width(2_000_000_000), merging_width(15_000_000_000)
    (1000000000, 15000000000)
    """
    if width not in ROUND_NS:
        return width
    return max(
        one for one in ROUND_NS if one <= width and all(wider % one == 0 for wider in ROUND_NS if wider >= width)
    )


def _lines(
    cursor: Cursor, metric: Metric, run: RunSummary, start_ns: int, end_ns: int, *, is_apart: bool
) -> MetricLines:
    is_distribution = metric.kind == HISTOGRAM.name
    width = round_width(end_ns - start_ns)
    if not is_distribution:
        width = merging_width(width)
    step_width = max(1, -(-((run.last_step or 0) - (run.first_step or 0) + 1) // (2 * POINTS)))
    window = {"start_ns": start_ns // width * width, "end_ns": (end_ns // width + 1) * width}
    by_time: dict[str, Any] = window | {"width": width, "axis": "time"}
    by_step: dict[str, Any] = window | {"width": step_width, "axis": "step"}
    widths: dict[str, Any] = {"name": metric.name, "width_ns": width, "step_width": step_width}
    if is_distribution:
        time, steps = (
            queries.quantiles(cursor, metric.name, shares=SHARES, group_by=[], **axis) for axis in (by_time, by_step)
        )
        time_spread = queries.heat_map(cursor, metric.name, **by_time | {"width": 2 * width})
        step_spread = queries.heat_map(cursor, metric.name, **by_step)
        return MetricLines(
            **widths,
            is_apart=False,
            time=[],
            steps=[],
            time_quantiles=time,
            step_quantiles=steps,
            time_spread=time_spread,
            step_spread=step_spread,
        )
    time_sums, step_sums = (metric_sums(cursor, metric.name, is_apart=is_apart, **axis) for axis in (by_time, by_step))
    return MetricLines(
        **widths, is_apart=is_apart, time=time_sums, steps=step_sums, time_quantiles=[], step_quantiles=[]
    )
