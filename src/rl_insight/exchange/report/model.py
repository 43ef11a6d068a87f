"""The data of a report: one JSON document, made of the query API's own structs where those fit.

Times named `_ns` are aligned nanoseconds since 1970 (counted from `origin_ns` where it says so), `_s` are seconds.
Columns of equal length stand for rows. Values that JSON lacks are null.
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
from rl_insight.store.queries.usage_by_state import UsageByState

VERSION = 3


class SpanColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Spans in columns, by lane, depth and start. What repeats is stored once, in lists that the columns point into."""

    total: int
    """How many spans there are in the window; where that is more than there are rows, the longest are here."""
    names: list[str]
    segments: list[str]
    statuses: list[str]
    sessions: list[str]
    texts: list[str]
    """Attributes, as JSON."""
    texts_left_out: int
    """How many spans' attributes had no room."""
    name: list[int]
    segment: list[int]
    status: list[int]
    session: list[int]
    """Position in `sessions`; -1 for none."""
    text: list[int]
    """Position in `texts`; -1 for none."""
    lane_id: list[int]
    depth: list[int]
    start_ns: list[int]
    """From `origin_ns`."""
    duration_ns: list[int]
    """-1 while it is open."""
    step: list[int | None]
    span_id: list[str]
    parent: list[int]
    """The row of the parent; -1 where it is not here."""
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
    """How many there are; where that is more than are here, an even sample and the slowest are."""
    sessions: list[Session]
    steps: list[StepDistribution]


class MetricLines(msgspec.Struct, frozen=True, kw_only=True):
    """One metric over the whole run: averages of gauges, rates of counters, quantiles of distributions."""

    name: str
    width_ns: int
    """Of an interval on the axis of time."""
    step_width: int
    time: list[Line]
    steps: list[Line]
    time_spread: HeatMap | None = None
    """Of a distribution, in intervals twice as wide."""
    step_spread: HeatMap | None = None


class ReportDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a report shows."""

    version: int
    generated_s: float
    generator: str
    scope: str
    """What hotspots, spans and sessions are of, in words."""
    step: int | None
    """The step of the scope; None for the whole run."""
    origin_ns: int
    """A whole second."""
    start_ns: int
    """The window that spans, logs and events are of."""
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
    """What is on the timeline, counted from `origin_ns`, at several resolutions; the coarsest first."""
    open_work: list[OpenWork]
    sessions_in_flight: list[SessionInFlight]
    sessions: SessionReport
    metrics: list[Metric]
    lines: list[MetricLines]
    usage: UsageByState
    logs: list[LogLine]
    events: list[Event]
    marks: list[Mark]
    series: list[SpanSeries]
    """How the names with the most time developed, by step and by time."""
    findings: list[Finding]
    transcripts: dict[str, Transcript] = {}
    """By session; empty unless they were asked for."""
