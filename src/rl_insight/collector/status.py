"""What a collector reports about itself."""

from __future__ import annotations

import msgspec

from rl_insight.collector.fanout import SinkStatus
from rl_insight.intake import Liveness
from rl_insight.schema import Loss

EVENT_KINDS = ("spans", "events", "logs", "samples", "histograms")
"""The tables of a batch whose rows are counted."""


class ProcessStatus(msgspec.Struct, frozen=True):
    """What a collector knows about one process."""

    process_id: str
    run_id: str
    project: str
    experiment_name: str
    host: str
    pid: int
    role: str
    rank: int | None
    last_seen_ns: int
    """When its last new batch arrived, by the receiver's clock."""
    batches: int
    events: dict[str, int]
    """Rows received, by kind."""
    losses: list[Loss]
    """What the process dropped since it started."""
    clock_offset_ns: int
    """What to add to the process's times to get the receiver's; 0 while nothing says that its clock is off."""
    state: Liveness
    """`live`, `silent` (several of its heartbeats are missing) or `ended` (in order)."""


class CollectorStatus(msgspec.Struct, frozen=True):
    """What a collector has seen, dropped and forwarded."""

    started_ns: int
    batches: int
    bytes: int
    duplicates: int
    refused: dict[str, int]
    """Payloads refused, by reason: `schema`, `version`."""
    events: dict[str, int]
    losses: list[Loss]
    """What all processes dropped, those no longer listed included."""
    missing_batches: int
    """Batches that never arrived while very many later ones did."""
    series: int
    refused_samples: dict[str, int]
    """Metric rows refused, by reason; see `SeriesTable`."""
    processes_seen: int
    """Processes ever seen; `processes` lists the latest of them."""
    processes: dict[str, ProcessStatus]
    sinks: dict[str, SinkStatus]
