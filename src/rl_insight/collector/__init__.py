"""Publishes the batches that were taken: merges their metrics, counts them, and hands them to sinks."""

from rl_insight.collector.base import Sink, SinkContext
from rl_insight.collector.collector import Collector, Published, Receipt
from rl_insight.collector.fanout import SinkRunner, SinkStatus
from rl_insight.collector.run_activity import RunKey
from rl_insight.collector.series import SeriesTable
from rl_insight.collector.status import CollectorStatus, ProcessStatus

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
