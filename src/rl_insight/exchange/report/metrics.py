"""What a report says about metrics."""

from __future__ import annotations

from math import isfinite

from rl_insight.exchange.report.model import MetricChart, MetricLine
from rl_insight.store import queries
from rl_insight.store.queries import Cursor, Line, Metric, RunSummary

_POINTS = 240
_MAX_METRICS = 80
_MAX_LINES = 12
_SHARES = [0.5, 0.95, 0.99]
_HARDWARE = ("gpu_", "node_", "process_resident", "process_cpu", "process_threads", "ray_node_")


def is_hardware(name: str) -> bool:
    """Tell whether a metric is about machines."""
    return name.startswith(_HARDWARE)


def metric_charts(cursor: Cursor, run: RunSummary) -> tuple[list[MetricChart], list[MetricChart]]:
    """Return the charts of metrics and of hardware, by name."""
    if run.start_ns is None or run.end_ns is None:
        return [], []
    found: list[MetricChart] = []
    machines: list[MetricChart] = []
    for metric in queries.metrics(cursor):
        chosen = machines if is_hardware(metric.name) else found
        if len(chosen) < _MAX_METRICS:
            chart = _chart(cursor, metric, run.start_ns, run.end_ns + 1)
            if chart.lines:
                chosen.append(chart)
    return found, machines


def _chart(cursor: Cursor, metric: Metric, start_ns: int, end_ns: int) -> MetricChart:
    width = max(1, (end_ns - start_ns) // _POINTS)
    if metric.kind == "histogram":
        lines = queries.quantiles(
            cursor, metric.name, start_ns=start_ns, end_ns=end_ns, width=width, shares=_SHARES, group_by=[]
        )
        drawn = [_line(f"p{float(line.labels['quantile']) * 100:g}", line) for line in lines]
    else:
        group_by = _grouping(metric)
        found = queries.range_query(
            cursor, metric.name, start_ns=start_ns, end_ns=end_ns, width=width, group_by=group_by
        )
        drawn = [_line(_label(line), line) for line in found[:_MAX_LINES]]
    return MetricChart(name=metric.name, kind=metric.kind, documentation=metric.documentation, lines=drawn)


def _grouping(metric: Metric) -> list[str]:
    """Return the labels that keep a readable number of lines apart."""
    if metric.series > _MAX_LINES:
        return []
    return metric.labels or ["role", "rank"]


def _label(line: Line) -> str:
    return ", ".join(f"{name}={value}" for name, value in line.labels.items())


def _line(label: str, line: Line) -> MetricLine:
    values = [value if value is not None and isfinite(value) else None for value in line.y]
    return MetricLine(label=label, time_ns=line.x, value=values)
