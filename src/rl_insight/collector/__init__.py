"""The receiving end: takes each batch once, merges metrics, and hands batches to sinks."""

from rl_insight.collector.base import Collector, Receipt, Sink, SinkContext
from rl_insight.collector.clock import ClockOffset
from rl_insight.collector.collector import InProcessCollector
from rl_insight.collector.fanout import SinkRunner, SinkStatus
from rl_insight.collector.ledger import LedgerEntry, SequenceLedger
from rl_insight.collector.run_activity import Run
from rl_insight.collector.series import SeriesTable
from rl_insight.collector.status import CollectorStatus, ProcessStatus

__all__ = [
    "ClockOffset",
    "Collector",
    "CollectorStatus",
    "InProcessCollector",
    "LedgerEntry",
    "ProcessStatus",
    "Receipt",
    "Run",
    "SequenceLedger",
    "SeriesTable",
    "Sink",
    "SinkContext",
    "SinkRunner",
    "SinkStatus",
]
