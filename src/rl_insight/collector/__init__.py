"""Publishes accepted batches: merges their metrics, counts them, and forwards them to sinks."""

from rl_insight.collector.base import Sink, SinkContext
from rl_insight.collector.collector import Collector, Published, Receipt
from rl_insight.collector.fanout import SinkRunner, SinkStatus
from rl_insight.collector.health import CollectorStatus, ProcessStatus
from rl_insight.collector.run_activity import RunKey
from rl_insight.collector.series import SeriesTable

__all__ = [
    "Collector",
    "CollectorStatus",
    "ProcessStatus",
    "Published",
    "Receipt",
    "RunKey",
    "SeriesTable",
    "Sink",
    "SinkContext",
    "SinkRunner",
    "SinkStatus",
]
