"""The data of a report: one JSON document, made of the structs of the query API where possible.

Times named `_ns` are aligned nanoseconds since 1970 (since `origin_ns` where noted), `_s` are seconds. Rows are
stored as columns of equal length. Values that JSON lacks are null.
"""

from __future__ import annotations

import msgspec

from rl_insight.store.queries import (
    Breakdown,
    Event,
    Finding,
    Flame,
    HeatMap,
    Hotspot,
    Lane,
    Line,
    LogLine,
    LossCount,
    Mark,
    Metric,
    OpenWork,
    ProcessHealth,
    RoleIdle,
    RunSummary,
    Session,
    SessionInFlight,
    SpanSeries,
    Step,
    StepMetric,
    Timeline,
    Transcript,
)
from rl_insight.store.queries.gpus_now import GpusNow
from rl_insight.store.queries.hardware import UsageByState

VERSION = 3


class SpanColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Spans in columns, by lane, depth and start. Repeated strings are stored once, in lists that the columns index."""

    total: int
    """Spans in the window; if that exceeds the number of rows, the rows are the longest ones."""
    names: list[str]
    segments: list[str]
    statuses: list[str]
    sessions: list[str]
    texts: list[str]
    """Attributes, as JSON."""
    texts_left_out: int
    """Spans whose attributes exceeded the limit."""
    name: list[int]
    segment: list[int]
    status: list[int]
    session: list[int]
    """Index in `sessions`; -1 for none."""
    text: list[int]
    """Index in `texts`; -1 for none."""
    lane_id: list[int]
    depth: list[int]
    start_ns: list[int]
    """Since `origin_ns`."""
    duration_ns: list[int]
    """-1 for an open span."""
    step: list[int | None]
    span_id: list[str]
    parent: list[int]
    """The row of the parent; -1 if it has none here."""
    errors: dict[int, str]
    """By row."""


class StepDistribution(msgspec.Struct, frozen=True):
    """Session durations of one step, in seconds."""

    step: int
    count: int
    p50: float
    p95: float
    max: float
    failed: int


class SessionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of the scope, and every step's distribution."""

    total: int
    """Sessions in the scope; if that exceeds the number here, these are an even sample and the slowest."""
    sessions: list[Session]
    steps: list[StepDistribution]


class MetricLines(msgspec.Struct, frozen=True, kw_only=True):
    """One metric over the whole run: averages of gauges, rates of counters, quantiles of histograms."""

    name: str
    width_ns: int
    """Of an interval on the time axis."""
    step_width: int
    time: list[Line]
    steps: list[Line]
    time_spread: HeatMap | None = None
    """Of a histogram, in intervals twice as wide."""
    step_spread: HeatMap | None = None


class ReportDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a report shows."""

    version: int
    generated_s: float
    generator: str
    scope: str
    """A description of what the hotspots, spans and sessions cover."""
    step: int | None
    """The step of the scope; None for the whole run."""
    origin_ns: int
    """A multiple of one second."""
    start_ns: int
    """The window of spans, logs and events."""
    end_ns: int
    run: RunSummary
    processes: list[ProcessHealth]
    losses: list[LossCount]
    lanes: list[Lane]
    steps: list[Step]
    breakdowns: dict[str, Breakdown]
    """Where the time of the steps went, by role; "" is the role that leads them."""
    idle: list[RoleIdle]
    """Of the latest steps."""
    step_metrics: list[StepMetric]
    hotspots: list[Hotspot]
    """By name."""
    hotspots_by: dict[str, list[Hotspot]]
    """By the other groupings of the query API."""
    flame: Flame
    spans: SpanColumns
    timelines: list[Timeline]
    """The timeline at several resolutions, the coarsest first; times are since `origin_ns`."""
    open_work: list[OpenWork]
    sessions_in_flight: list[SessionInFlight]
    sessions: SessionReport
    metrics: list[Metric]
    lines: list[MetricLines]
    usage: UsageByState
    gpus_now: GpusNow
    """At the end of the run, without the devices."""
    logs: list[LogLine]
    events: list[Event]
    marks: list[Mark]
    series: list[SpanSeries]
    """How the largest hotspots developed, by step and by time."""
    findings: list[Finding]
    transcripts: dict[str, Transcript] = {}
    """By session; empty unless requested."""
