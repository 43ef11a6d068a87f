"""Recorded metrics to trackers: from this process, or behind a collector from all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from rl_insight.collector import InProcessCollector
from rl_insight.collector.base import Collector, Sink
from rl_insight.integrations.trackers.base import Tracker
from rl_insight.monitor import Monitor, default_monitor
from rl_insight.schema import Batch
from rl_insight.schema.records import HistogramRecord, SampleRecord, _histograms, _samples
from rl_insight.transport.base import Transport

StepValues = dict[int | None, dict[str, float]]


class TrackerSink(Sink):
    """Writes recorded metrics whose names match a pattern to one tracker, on the training step.

    A gauge gives its latest value of the step, a counter its total, a distribution its count and mean. Labels follow
    the name: `gpu_power_watts/gpu=0/host=a`.

    Args:
        tracker: Where to.
        metrics: Shell-style patterns (`reward_*`); a metric that matches one of them is written.
    """

    def __init__(self, tracker: Tracker, metrics: Iterable[str] = ("*",)) -> None:
        self.name = f"tracker-{tracker.name}"
        self._tracker = tracker
        self._patterns = tuple(metrics)
        self._chosen: dict[str, bool] = {}

    def write(self, batch: Batch) -> None:
        """Write what a batch holds, step by step."""
        steps: StepValues = {}
        for sample in _samples(batch):
            if self._is_chosen(sample.metric):
                steps.setdefault(sample.step, {})[_key(sample)] = float(sample.value)
        for histogram in _histograms(batch):
            if self._is_chosen(histogram.metric) and histogram.count:
                values, key = steps.setdefault(histogram.step, {}), _key(histogram)
                values[f"{key}.count"] = float(histogram.count)
                values[f"{key}.mean"] = float(histogram.sum) / histogram.count
        for step in sorted(steps, key=lambda step: (step is not None, step or 0)):
            self._tracker.log(steps[step], step)

    def close(self) -> None:
        """Close the tracker."""
        self._tracker.close()

    def _is_chosen(self, metric: str) -> bool:
        chosen = self._chosen.get(metric)
        if chosen is None:
            chosen = any(fnmatchcase(metric, pattern) for pattern in self._patterns)
            self._chosen[metric] = chosen
        return chosen


def send_to_trackers(
    trackers: Sequence[Tracker], metrics: Iterable[str] = ("*",), monitor: Monitor | None = None
) -> bool:
    """Have what this process records written to trackers too; call it after `init`. False when nothing is recorded.

    >>> insight.init("math", "grpo-7b")  # doctest: +SKIP
    >>> send_to_trackers([WandbTracker()], metrics=["reward_*", "gpu_*"])  # doctest: +SKIP
    True

    Args:
        trackers: Each is fed by a thread of its own, through a bounded queue.
        metrics: Shell-style patterns of the metrics to write.
        monitor: The default one when left out.
    """
    pipeline = (monitor or default_monitor)._pipeline
    if pipeline is None:
        return False
    patterns = tuple(metrics)
    collector = InProcessCollector([TrackerSink(tracker, patterns) for tracker in trackers])
    transport = _TrackedTransport(pipeline.transport, collector)
    pipeline.transport = transport
    pipeline.flusher._send = transport.send
    return True


class _TrackedTransport(Transport):
    """The transport of a process that is under way, with trackers beside it: batches keep their sequence numbers."""

    def __init__(self, transport: Transport, collector: Collector) -> None:
        self._transport = transport
        self._collector = collector
        self.max_batch_bytes = transport.max_batch_bytes
        self.on_loss = transport.on_loss

    def send(self, payload: bytes, sequence: int) -> None:
        self._transport.send(payload, sequence)
        self._collector.ingest(payload)

    def flush(self, timeout_s: float) -> bool:
        return self._transport.flush(timeout_s)

    def close(self) -> None:
        self._transport.close()
        self._collector.close()

    def abandon(self) -> None:
        self._transport.abandon()

    def get_status(self) -> dict[str, Any]:
        return {**self._transport.get_status(), "trackers": self._collector.get_status()}


def create_tracker_sink(tracker: str, metrics: Iterable[str] = ("*",), **options: Any) -> TrackerSink:
    """Make the sink that a configuration names: `tracker` is one of `create_tracker`'s names."""
    from rl_insight.integrations.trackers import create_tracker

    return TrackerSink(create_tracker(tracker, **options), metrics)


def _key(record: SampleRecord | HistogramRecord) -> str:
    return "/".join([record.metric, *(f"{name}={value}" for name, value in sorted(record.labels.items()))])
