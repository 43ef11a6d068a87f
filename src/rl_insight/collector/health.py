"""A collector's status as metrics."""

from __future__ import annotations

from collections import Counter

from rl_insight.collector.fanout import SinkStatus
from rl_insight.collector.status import CollectorStatus
from rl_insight.intake import LIVENESS
from rl_insight.metrics import COUNTER, GAUGE
from rl_insight.metrics.families import Readings, Values, by, several, single


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
    single("collector_duplicate_batches", COUNTER, "Batches received again.", lambda status: status.duplicates),
    single("collector_missing_batches", COUNTER, "Batches that never arrived.", lambda status: status.missing_batches),
    single("collector_series", GAUGE, "Metric series held.", lambda status: status.series),
    by("reason", "collector_refused_batches", COUNTER, "Payloads refused.", lambda status: status.refused.items()),
    by("reason", "collector_refused_samples", COUNTER, "Metric rows refused.", lambda s: s.refused_samples.items()),
    by("kind", "collector_events", COUNTER, "Rows accepted.", lambda status: status.events.items()),
    by("state", "collector_processes", GAUGE, "Processes known.", lambda status: _process_states(status).items()),
    several(
        "collector_clock_offset_seconds",
        GAUGE,
        "What to add to a process's clock to get the collector's.",
        _clock_offsets,
        across="max",
    ),
    by("sink", "collector_sink_queued", GAUGE, "Batches queued.", lambda s: [(n, k.queued) for n, k in _sinks(s)]),
    by("sink", "collector_sink_written", COUNTER, "Batches written.", lambda s: [(n, k.written) for n, k in _sinks(s)]),
    by("sink", "collector_sink_failed", COUNTER, "Failed batches.", lambda s: [(n, k.failed) for n, k in _sinks(s)]),
    by("sink", "collector_sink_dropped", COUNTER, "Dropped batches.", lambda s: [(n, k.dropped) for n, k in _sinks(s)]),
    several(
        "telemetry_lost",
        COUNTER,
        "Rows that processes recorded and had to drop.",
        lambda status: [((("kind", loss.kind), ("reason", loss.reason)), loss.count) for loss in status.losses],
    ),
)
"""The names are reserved: recorded metrics cannot use them."""
