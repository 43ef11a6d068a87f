"""Send recorded metrics to trackers: from this process, or from all processes behind a collector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from rl_insight.collector.base import Sink
from rl_insight.integrations.trackers.base import SinkFeed, Tracker
from rl_insight.integrations.trackers.libraries import tracker_class
from rl_insight.monitor import Monitor, default_monitor
from rl_insight.schema import Batch
from rl_insight.schema.records import HistogramRecord, SampleRecord, metric_records

StepValues = dict[int | None, dict[str, float]]

_LEAST_CLOSE_S = 0.5
"""The time for trackers to finish, even if the server used up the entire timeout."""


class TrackerSink(Sink):
    """Writes recorded metrics whose names match a pattern to one tracker, on the training step.

    A gauge is written with its latest value in the step, a counter with its total, a distribution with its count and
    mean. Labels follow the name: `gpu_power_watts/gpu=0/host=a`.

    Args:
        tracker: The tracker.
        metrics: Shell-style patterns (`reward_*`); a metric that matches one of them is written.
    """

    def __init__(self, tracker: Tracker, metrics: Iterable[str] = ("*",)) -> None:
        self.name = f"tracker-{tracker.name}"
        self._tracker = tracker
        self._patterns = tuple(metrics)
        self._chosen: dict[str, bool] = {}

    def write(self, batch: Batch) -> None:
        """Write the metrics of a batch, step by step."""
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
    """Also write this process's metrics to trackers; call it after `init`. Returns False if recording is off.

    >>> insight.init("math", "grpo-7b")  # doctest: +SKIP
    >>> send_to_trackers([WandbTracker()], metrics=["reward_*", "gpu_*"])  # doctest: +SKIP
    True

    Args:
        trackers: Each is fed by its own thread, through a bounded queue.
        metrics: Shell-style patterns of the metrics to write.
        monitor: The monitor; the default one if None.
    """
    pipeline = (monitor or default_monitor)._pipeline
    if pipeline is None:
        return False
    patterns = tuple(metrics)
    listener = _TrackerListener([TrackerSink(tracker, patterns) for tracker in trackers])
    pipeline.companions.append(listener)
    pipeline.flusher.add_listener(listener.take)
    return True


class _TrackerListener(SinkFeed):
    def take(self, batch: Batch) -> None:
        self.put(batch)
        if batch.final:  # they finish while the last batch is being sent to the server
            self.start_closing()

    def close(self, timeout_s: float = 5.0) -> None:
        super().close(max(timeout_s, _LEAST_CLOSE_S))


def create_tracker_sink(tracker: str, metrics: Sequence[str] = ("*",), **options: Any) -> TrackerSink:
    """Create the sink of the section `sinks.tracker`.

    Args:
        tracker: One of `create_tracker`'s names.
        metrics: Shell-style patterns of the metrics to write.
        options: Options for the tracker, which is created on the first write.
    """
    return TrackerSink(_LateTracker(tracker, partial(tracker_class(tracker), **options)), metrics)


class _LateTracker(Tracker):
    """Creates a tracker, which may start a run in another system, on the first write."""

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
