"""The data of a report: one JSON document, which any page can draw.

Times named `_ns` are aligned nanoseconds since 1970, `_s` are seconds. Columns of equal length stand for rows. Values
that JSON lacks are null.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rl_insight.store.queries import Hotspot, Lane, LossCount, RunSummary, Step, Timeline

VERSION = 1


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """How values are spread: quantiles, and a histogram whose bins are equally wide on a logarithmic axis."""

    count: int
    average: float
    p50: float
    p95: float
    p99: float
    max: float
    edges: list[float]
    """One more than there are bins."""
    counts: list[int]


class StepDistribution(msgspec.Struct, frozen=True, kw_only=True):
    """Session durations of one step, in seconds."""

    step: int
    count: int
    p50: float
    p95: float
    max: float
    failed: int


class PhaseTotal(msgspec.Struct, frozen=True, kw_only=True):
    """One phase, or one wait, over all sessions of the scope; seconds a session."""

    name: str
    count: int
    average_s: float
    p50_s: float
    p95_s: float
    max_s: float
    total_s: float


class Scatter(msgspec.Struct, frozen=True, kw_only=True):
    """Durations against the moment they began; a sample where there are many, with every outlier kept."""

    name: str
    total: int
    """How many there are in all."""
    p50_s: float
    p95_s: float
    outlier_s: float
    """Beyond this, a duration is shown as an outlier: the upper quartile and three times the spread of the middle."""
    start_ns: list[int]
    duration_s: list[float]
    group: list[int]
    """Position in `groups`."""
    groups: list[str]
    label: list[str]


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """An interval of a session: a wait, or a phase."""

    name: str
    start_ns: int
    end_ns: int | None
    """None: it has not ended."""
    outcome: str


class SessionBars(msgspec.Struct, frozen=True, kw_only=True):
    """One session of the Gantt chart."""

    session_id: str
    task_id: str | None
    status: str
    step: int | None
    start_ns: int
    end_ns: int | None
    bars: list[Bar]


class SessionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of the scope, and all steps' distributions."""

    total: int
    by_status: dict[str, int]
    durations: Distribution | None
    steps: list[StepDistribution]
    phases: list[PhaseTotal]
    latency: Scatter | None
    gantt: list[SessionBars]
    """The longest, by start."""


class MetricLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a chart."""

    label: str
    time_ns: list[int]
    value: list[float | None]


class MetricChart(msgspec.Struct, frozen=True, kw_only=True):
    """One metric over the whole run: values of gauges, rates a second of counters, quantiles of distributions."""

    name: str
    kind: str
    documentation: str
    lines: list[MetricLine]


class ReportProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the run."""

    process_id: str
    title: str
    host: str
    clock_offset_ns: int
    open_spans: int
    lost: int


class ReportDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a report shows."""

    version: int
    generated_s: float
    generator: str
    scope: str
    """What hotspots, timeline, latency and sessions are of, in words."""
    run: RunSummary
    processes: list[ReportProcess]
    losses: list[LossCount]
    steps: list[Step]
    hotspots: list[Hotspot]
    lanes: list[Lane]
    timeline: Timeline | None
    latency: list[Scatter]
    sessions: SessionReport | None
    metrics: list[MetricChart]
    hardware: list[MetricChart]
    findings: list[dict[str, Any]]
