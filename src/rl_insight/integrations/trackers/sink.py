"""Recorded metrics to trackers: from this process, or behind a collector from all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from rl_insight.collector.base import Sink
from rl_insight.collector.fanout import SinkRunner
from rl_insight.integrations.trackers.base import Tracker
from rl_insight.monitor import Monitor, default_monitor
from rl_insight.schema import Batch
from rl_insight.schema.records import HistogramRecord, SampleRecord, metric_records

StepValues = dict[int | None, dict[str, float]]

_LEAST_CLOSE_S = 0.5
"""What trackers get to finish, even if the server took all the time there was."""


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
        for record in metric_records(batch):
            if not self._is_chosen(record.metric):
                continue
            if isinstance(record, SampleRecord):
                steps.setdefault(record.step, {})[_key(record)] = float(record.value)
            elif record.count:
                values, key = steps.setdefault(record.step, {}), _key(record)
                values[f"{key}.count"] = float(record.count)
                values[f"{key}.mean"] = float(record.sum) / record.count
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
        trackers: Each is fed by its own thread, through a bounded queue.
        metrics: Shell-style patterns of the metrics to write.
        monitor: The default one when left out.
    """
    pipeline = (monitor or default_monitor)._pipeline
    if pipeline is None:
        return False
    patterns = tuple(metrics)
    listener = _TrackerListener([TrackerSink(tracker, patterns) for tracker in trackers])
    pipeline.companions.append(listener)
    pipeline.flusher.add_listener(listener.take)
    return True


class _TrackerListener:
    """Hands each batch of this process to the trackers, which write it in dedicated threads."""

    def __init__(self, sinks: Iterable[TrackerSink]) -> None:
        self._runners = [SinkRunner(sink) for sink in sinks]

    def take(self, batch: Batch) -> None:
        for runner in self._runners:
            runner.put(batch)
            if batch.final:  # they finish while the last batch is on its way to the server
                runner.start_closing()

    def close(self, timeout_s: float) -> None:
        deadline = time.monotonic() + max(timeout_s, _LEAST_CLOSE_S)
        for runner in self._runners:
            runner.close(max(0.0, deadline - time.monotonic()))

    def get_status(self) -> dict[str, Any]:
        return {runner.sink.name: msgspec.to_builtins(runner.get_status()) for runner in self._runners}


def create_tracker_sink(tracker: str, metrics: Sequence[str] = ("*",), **options: Any) -> TrackerSink:
    """Make the sink of the section `sinks.tracker`.

    Args:
        tracker: One of `create_tracker`'s names.
        metrics: Shell-style patterns of the metrics to write.
        options: For the tracker, which is made when there is something to write.
    """
    from rl_insight.integrations.trackers import check_tracker, create_tracker

    check_tracker(tracker)
    return TrackerSink(_LateTracker(tracker, lambda: create_tracker(tracker, **options)), metrics)


class _LateTracker(Tracker):
    """Makes a tracker, and with it perhaps a run in another system, once there is something to write."""

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self.name = name
        self._make = make
        self._made: Tracker | None = None

    def log(self, values: Mapping[str, float], step: int | None) -> None:
        if self._made is None:
            self._made = self._make()
        self._made.log(values, step)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


def _key(record: SampleRecord | HistogramRecord) -> str:
    return "/".join([record.metric, *(f"{name}={value}" for name, value in sorted(record.labels.items()))])
