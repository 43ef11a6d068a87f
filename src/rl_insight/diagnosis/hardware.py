"""Readings of GPUs, hosts and engines over the last minutes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeVar

from rl_insight.diagnosis.rows import SampleRow, SeriesRow
from rl_insight.schema.names import device_of

_KEPT_POINTS = 400
History = deque[tuple[int, float]]
Key = TypeVar("Key")


@dataclass(slots=True)
class Device:
    """A GPU, a host or an engine with its quantities."""

    host: str
    gpu: str | None
    process: int
    quantities: dict[str, dict[int, History]] = field(default_factory=dict)
    """Quantity to series to its last readings: an engine may export one series per worker."""

    def add(self, quantity: str, sample: SampleRow) -> None:
        """Add a reading."""
        by_series = self.quantities.setdefault(quantity, {})
        history = by_series.get(sample.series_id)
        if history is None:
            history = by_series[sample.series_id] = deque(maxlen=_KEPT_POINTS)
        history.append((sample.time_ns, sample.value))

    def latest(self, quantity: str) -> float | None:
        """Return the last reading, summed over the series."""
        found = [history[-1][1] for history in self.quantities.get(quantity, {}).values()]
        return sum(found) if found else None

    def between(self, quantity: str, start_ns: int, end_ns: int) -> list[float]:
        """Return the readings in a window, which is usually the most recent one."""
        return [value for _, value in self.points(quantity, start_ns, end_ns)]

    def points(self, quantity: str, start_ns: int, end_ns: int) -> list[tuple[int, float]]:
        """Return the readings in a window with their times, series by series."""
        found: list[tuple[int, float]] = []
        for history in self.quantities.get(quantity, {}).values():
            recent = list(takewhile(lambda point: point[0] > start_ns, reversed(history)))
            found += (point for point in reversed(recent) if point[0] <= end_ns)
        return found

    def history(self, quantity: str) -> list[tuple[int, float]]:
        """Return the readings that are kept, with their times."""
        return sorted(point for history in self.quantities.get(quantity, {}).values() for point in history)

    def growth(self, quantity: str, start_ns: int, end_ns: int) -> float | None:
        """Return how much a total grew in a window; None if it has fewer than two readings."""
        total = None
        for history in self.quantities.get(quantity, {}).values():
            recent = [value for time_ns, value in takewhile(lambda point: point[0] >= start_ns, reversed(history))
                      if time_ns <= end_ns]  # fmt: skip
            if len(recent) >= 2:
                total = (total or 0.0) + recent[0] - recent[-1]
        return total


class HardwareBook:
    """Everything measured outside of the training code."""

    def __init__(self) -> None:
        self.gpus: dict[tuple[str, str], Device] = {}
        """By host and index."""
        self.hosts: dict[str, Device] = {}
        self.processes: dict[int, Device] = {}
        self.engines: dict[str, Device] = {}
        """By instance, as `host:port`."""
        self.targets: dict[str, Device] = {}
        """All scrape targets by instance, with the one quantity `up`: engines, and also hubs and exporters."""
        self._target_of: dict[str, str] = {}
        """The instance of an engine to that of its target, which differ with data parallelism."""

    def add(self, series: SeriesRow, sample: SampleRow) -> bool:
        """Add a sample of the hardware monitor; returns False for any other sample."""
        host, gpu = device_of(series.labels)
        kind, _, quantity = series.name.partition("_")
        if kind == "gpu" and gpu is not None and not series.name.startswith("gpu_process_"):
            device = _device(self.gpus, (host, gpu), host, series, gpu)
        elif kind == "node":
            device = _device(self.hosts, host, host, series)
        elif kind == "process":
            device = _device(self.processes, series.process, host, series)
        else:
            return False
        device.add(quantity, sample)
        return True

    def add_engine(self, series: SeriesRow, sample: SampleRow, canonical: str) -> None:
        """Add a sample of an engine; with data parallelism, one instance has several engines.

        SGLang exports a queue once in total, without a priority, and once more for each priority.
        """
        labels = series.labels
        if labels.get("priority"):
            return
        target = instance = _instance(series)
        if part := labels.get("engine") or labels.get("dp_rank"):
            instance = f"{instance} engine {part}"
        quantity = canonical.removeprefix("engine_")
        if quantity != "awake" or labels.get("sleep_state", "awake") == "awake":
            _device(self.engines, instance, instance, series).add(quantity, sample)
            self._target_of[instance] = target

    def add_target(self, series: SeriesRow, sample: SampleRow) -> None:
        """Add whether a scrape target answered."""
        instance = _instance(series)
        _device(self.targets, instance, instance, series).add("up", sample)

    def engine_targets(self) -> list[Device]:
        """Return the scrape targets that have shown metrics of an engine."""
        served = set(self._target_of.values())
        return [target for instance, target in self.targets.items() if instance in served]

    def is_down(self, engine: Device) -> bool:
        """Return whether the last scrape of an engine failed."""
        target = self.targets.get(self._target_of[engine.host])
        return target is not None and target.latest("up") == 0


def _instance(series: SeriesRow) -> str:
    return series.labels.get("instance") or f"process {series.process}"


def _device(devices: dict[Key, Device], key: Key, host: str, series: SeriesRow, gpu: str | None = None) -> Device:
    device = devices.get(key)
    if device is None:
        device = devices[key] = Device(host, gpu, series.process)
    return device
