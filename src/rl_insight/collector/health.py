"""A collector's health: its status, and the same as metrics."""

from __future__ import annotations

from collections import Counter

import msgspec

from rl_insight.collector.fanout import SinkStatus
from rl_insight.intake import LIVENESS, Liveness
from rl_insight.metrics import COUNTER, GAUGE
from rl_insight.metrics.families import Readings, Values, by, several, single
from rl_insight.schema import Loss

EVENT_KINDS = ("spans", "events", "logs", "samples", "histograms")
"""Tables whose rows are counted."""


class ProcessStatus(msgspec.Struct, frozen=True):
    """The status of one process."""

    process_id: str
    run_id: str
    project: str
    experiment_name: str
    host: str
    pid: int
    role: str
    rank: int | None
    last_seen_ns: int
    """When its last new batch arrived, on the receiver's clock."""
    batches: int
    events: dict[str, int]
    """Rows received, by kind."""
    losses: list[Loss]
    """Data the process dropped since it started."""
    clock_offset_ns: int
    """Add this to the process's timestamps to get the receiver's; 0 unless its clock is known to be off."""
    state: Liveness
    """`live`, `silent` (several missed heartbeats) or `ended` (clean shutdown)."""


class CollectorStatus(msgspec.Struct, frozen=True):
    """The counts of data that a collector received, dropped and forwarded."""

    started_ns: int
    batches: int
    bytes: int
    duplicates: int
    refused: dict[str, int]
    """Payloads refused, by reason: `schema`, `version`."""
    events: dict[str, int]
    losses: list[Loss]
    """Data dropped by all processes, including those no longer listed."""
    missing_batches: int
    """Batches that never arrived, although many later ones did."""
    series: int
    refused_samples: dict[str, int]
    """Metric rows refused, by reason; see `SeriesTable`."""
    processes_seen: int
    """Processes ever seen; `processes` lists the most recent ones."""
    processes: dict[str, ProcessStatus]
    sinks: dict[str, SinkStatus]


def _process_states(status: CollectorStatus) -> dict[str, int]:
    states = Counter(process.state for process in status.processes.values())
    return {state: states[state] for state in LIVENESS}


def _clock_offsets(status: CollectorStatus) -> Values:
    for process in status.processes.values():
        if process.state != "ended":
            yield (("process_id", process.process_id), ("host", process.host)), process.clock_offset_ns / 1e9


def _sinks(status: CollectorStatus) -> list[tuple[str, SinkStatus]]:
    return list(status.sinks.items())


HEALTH: Readings[CollectorStatus] = Readings(
    single("collector_batches", COUNTER, "Batches accepted.", lambda status: status.batches),
    single("collector_bytes", COUNTER, "Bytes of accepted batches.", lambda status: status.bytes),
    single("collector_duplicate_batches", COUNTER, "Duplicate batches received.", lambda status: status.duplicates),
    single("collector_missing_batches", COUNTER, "Batches that never arrived.", lambda status: status.missing_batches),
    single("collector_series", GAUGE, "Metric series in memory.", lambda status: status.series),
    by("reason", "collector_refused_batches", COUNTER, "Payloads refused.", lambda status: status.refused.items()),
    by("reason", "collector_refused_samples", COUNTER, "Metric rows refused.", lambda s: s.refused_samples.items()),
    by("kind", "collector_events", COUNTER, "Rows accepted.", lambda status: status.events.items()),
    by("state", "collector_processes", GAUGE, "Processes known.", lambda status: _process_states(status).items()),
    several(
        "collector_clock_offset_seconds",
        GAUGE,
        "Offset to add to a process's clock to get the collector's.",
        _clock_offsets,
        across="max",
    ),
    by("sink", "collector_sink_queued", GAUGE, "Batches queued.", lambda s: [(n, k.queued) for n, k in _sinks(s)]),
    by("sink", "collector_sink_written", COUNTER, "Batches written.", lambda s: [(n, k.written) for n, k in _sinks(s)]),
    by(
        "sink",
        "collector_sink_failed",
        COUNTER,
        "Batches that failed.",
        lambda s: [(n, k.failed) for n, k in _sinks(s)],
    ),
    by("sink", "collector_sink_dropped", COUNTER, "Batches dropped.", lambda s: [(n, k.dropped) for n, k in _sinks(s)]),
    several(
        "telemetry_lost",
        COUNTER,
        "Recorded rows that processes had to drop.",
        lambda status: [((("kind", loss.kind), ("reason", loss.reason)), loss.count) for loss in status.losses],
    ),
)
"""The names are reserved: recorded metrics cannot use them."""
