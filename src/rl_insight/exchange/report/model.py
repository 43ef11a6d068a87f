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
    PartDurations,
    ProcessHealth,
    RoleIdle,
    RunSummary,
    SessionInFlight,
    SessionStep,
    SpanSeries,
    Step,
    StepMetric,
    StepPace,
    StoredSession,
    Timeline,
    Transcript,
)
from rl_insight.store.queries.gpus_now import GpusNow
from rl_insight.store.queries.hardware import UsageByState
from rl_insight.store.queries.metric_sums import SeriesSums

VERSION = 4


class StringColumn(msgspec.Struct, frozen=True):
    """A column of strings; repeated ones are stored once."""

    values: list[str]
    rows: list[int]
    """For each row, the position in `values`; -1 for none."""


class SpanColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Spans in columns, by lane, depth and start; the columns are the fields of a `StoredSpan`."""

    total: int
    """Spans in the window; if that exceeds the number of rows, the rows are the longest ones."""
    texts_left_out: int
    """Spans whose attributes exceeded the limit."""
    span_id: list[str]
    trace_id: StringColumn
    parent_id: StringColumn
    name: StringColumn
    start_ns: list[int]
    """Since `origin_ns`."""
    duration_ns: list[int]
    """-1 for an open span."""
    until_ns: dict[int, int]
    """By lane, until when its open spans last, since `origin_ns`."""
    segment: StringColumn
    status: StringColumn
    error: StringColumn
    step: list[int | None]
    session_id: StringColumn
    attributes: StringColumn
    """As recorded, normally JSON objects."""
    unreadable: list[int]
    """The positions in the values of `attributes` that are not JSON objects."""
    lane_id: list[int]
    depth: list[int]


class SessionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of the scope, and how long they took."""

    total: int
    """Sessions in the scope; if that exceeds the number here, these are an even sample and the slowest."""
    sessions: list[StoredSession]
    durations: list[PartDurations]
    """Of all sessions in the scope."""
    steps: list[SessionStep]
    """Of all sessions in the scope."""
    counted_steps: dict[str, int]
    """By session: the counted step in which one without a step was submitted."""


class MetricLines(msgspec.Struct, frozen=True, kw_only=True):
    """One metric over the whole run: sums of gauges and counters, quantiles and heat maps of histograms."""

    name: str
    width_ns: int
    """Of an interval on the time axis."""
    step_width: int
    is_apart: bool
    """Whether `time` and `steps` have a line for each series, not one for all of them."""
    time: list[SeriesSums]
    steps: list[SeriesSums]
    time_quantiles: list[Line]
    step_quantiles: list[Line]
    time_spread: HeatMap | None = None
    """In intervals twice as wide."""
    step_spread: HeatMap | None = None


class ReportDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a report shows."""

    version: int
    generated_s: float
    now_ns: int
    """When it was generated; for a run without a live process, its last sign of life."""
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
    """From the first to the last of these steps, the latest."""
    first_idle_step: int | None
    last_idle_step: int | None
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
    pace: StepPace
    sessions_in_flight: list[SessionInFlight]
    sessions: SessionReport
    metrics: list[Metric]
    lines: list[MetricLines]
    usage: UsageByState
    gpus_now: GpusNow
    """At the end of the run, without the devices."""
    logs: list[LogLine]
    log_texts: StringColumn
    """The attributes of the logs as recorded, in which searches look."""
    events: list[Event]
    event_texts: StringColumn
    marks: list[Mark]
    series: list[SpanSeries]
    """How the largest hotspots developed, by step and by time."""
    findings: list[Finding]
    transcripts: dict[str, Transcript] = {}
    """By session; empty unless requested."""
