"""Questions to a run: functions over a read cursor, answers as structs; times are aligned nanoseconds.

>>> with store.reader() as cursor:  # doctest: +SKIP
...     queries.hotspots(cursor, queries.Scope(last_steps=1))
"""

from rl_insight.sessions.model import Session
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.breakdown import Breakdown, RoleIdle, breakdown, idle_by_role
from rl_insight.store.queries.findings import (
    Coverage,
    Diagnosed,
    Finding,
    mute_rule,
    muted_rules,
    read_coverage,
    read_diagnosed,
    read_extent,
    read_findings,
    top_findings,
    visible_findings,
    write_coverage,
    write_diagnosed,
    write_findings,
)
from rl_insight.store.queries.flame import Flame, FlameNode, flame
from rl_insight.store.queries.histograms import HeatMap, heat_map, quantiles
from rl_insight.store.queries.hotspots import Hotspot, hotspots
from rl_insight.store.queries.logs import (
    Event,
    EventConditions,
    LogConditions,
    LogHistogram,
    LogInterval,
    LogLine,
    log_histogram,
    search_events,
    search_logs,
)
from rl_insight.store.queries.marks import Annotation, Mark, annotate, marks, read_annotations
from rl_insight.store.queries.metrics import Line, Matcher, Metric, label_values, metrics, parse_matchers, range_query
from rl_insight.store.queries.rank_steps import RankGrid, RankRow, rank_steps
from rl_insight.store.queries.rewards import latest_reward, reward_metric
from rl_insight.store.queries.run_notes import (
    ConfigDifference,
    RunNotes,
    config_differences,
    read_notes,
    run_config,
    write_notes,
)
from rl_insight.store.queries.scope import Scope, from_step
from rl_insight.store.queries.session_groups import (
    GroupPage,
    GroupStep,
    SampleGroup,
    Staleness,
    StaleStep,
    group_steps,
    session_groups,
    staleness,
)
from rl_insight.store.queries.sessions import (
    SessionInFlight,
    close_lost_sessions,
    session_record,
    sessions,
    sessions_in_flight,
)
from rl_insight.store.queries.span_series import SpanInterval, SpanPoint, SpanSeries, span_series
from rl_insight.store.queries.spans import (
    OpenWork,
    Span,
    SpanDetail,
    open_spans,
    open_work,
    search_spans,
    span,
    span_detail,
)
from rl_insight.store.queries.sql import SqlLimits, SqlResult, run_sql, run_sql_on_file
from rl_insight.store.queries.stacks import ProcessStacks, StackGroup, running_processes, stack_groups
from rl_insight.store.queries.step_comparison import PhaseComparison, StepComparison, compare_step
from rl_insight.store.queries.steps import Step, StepMetric, step_metrics, steps
from rl_insight.store.queries.summary import LossCount, ProcessHealth, RunSummary, losses, processes, summary
from rl_insight.store.queries.timeline import Lane, Timeline, lanes, timeline
from rl_insight.store.queries.trace_sessions import trace_sessions
from rl_insight.store.queries.transcripts import Transcript, session_transcript

__all__ = [
    "Annotation",
    "Breakdown",
    "ConfigDifference",
    "Coverage",
    "Cursor",
    "Diagnosed",
    "Event",
    "EventConditions",
    "Finding",
    "Flame",
    "FlameNode",
    "GroupPage",
    "GroupStep",
    "HeatMap",
    "Hotspot",
    "Lane",
    "Line",
    "LogConditions",
    "LogHistogram",
    "LogInterval",
    "LogLine",
    "LossCount",
    "Mark",
    "Matcher",
    "Metric",
    "OpenWork",
    "PhaseComparison",
    "ProcessHealth",
    "ProcessStacks",
    "RankGrid",
    "RankRow",
    "RoleIdle",
    "RunNotes",
    "RunSummary",
    "SampleGroup",
    "Scope",
    "Session",
    "SessionInFlight",
    "Span",
    "SpanDetail",
    "SpanInterval",
    "SpanPoint",
    "SpanSeries",
    "SqlLimits",
    "SqlResult",
    "StackGroup",
    "StaleStep",
    "Staleness",
    "Step",
    "StepComparison",
    "StepMetric",
    "Timeline",
    "Transcript",
    "annotate",
    "breakdown",
    "close_lost_sessions",
    "compare_step",
    "config_differences",
    "flame",
    "from_step",
    "group_steps",
    "heat_map",
    "hotspots",
    "idle_by_role",
    "label_values",
    "lanes",
    "latest_reward",
    "log_histogram",
    "losses",
    "marks",
    "metrics",
    "mute_rule",
    "muted_rules",
    "open_spans",
    "open_work",
    "parse_matchers",
    "processes",
    "quantiles",
    "range_query",
    "rank_steps",
    "read_annotations",
    "read_coverage",
    "read_diagnosed",
    "read_extent",
    "read_findings",
    "read_notes",
    "reward_metric",
    "run_config",
    "run_sql",
    "run_sql_on_file",
    "running_processes",
    "search_events",
    "search_logs",
    "search_spans",
    "session_groups",
    "session_record",
    "session_transcript",
    "sessions",
    "sessions_in_flight",
    "span",
    "span_detail",
    "span_series",
    "stack_groups",
    "staleness",
    "step_metrics",
    "steps",
    "summary",
    "timeline",
    "top_findings",
    "trace_sessions",
    "visible_findings",
    "write_coverage",
    "write_diagnosed",
    "write_findings",
    "write_notes",
]
