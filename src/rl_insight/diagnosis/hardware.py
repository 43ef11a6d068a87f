"""GPUs, hosts and engines over the last minutes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile

from rl_insight.diagnosis.rows import SampleRow, SeriesRow

_KEPT_POINTS = 400
History = deque[tuple[int, float]]


@dataclass(slots=True)
class Device:
    """A GPU, a host or an engine with its quantities."""

    host: str
    gpu: str | None
    process: int
    quantities: dict[str, dict[int, History]] = field(default_factory=dict)
    """Quantity to series to its last readings: an engine may show one series per worker."""

    def add(self, quantity: str, sample: SampleRow) -> None:
        """Take a reading."""
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
        """Return the readings in a window, which is usually at the end."""
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
        """Return how much a total grew in a window; None when it was read less than twice."""
        total = None
        for history in self.quantities.get(quantity, {}).values():
            recent = [value for moment, value in takewhile(lambda point: point[0] >= start_ns, reversed(history))
                      if moment <= end_ns]  # fmt: skip
            if len(recent) >= 2:
                total = (total or 0.0) + recent[0] - recent[-1]
        return total


class HardwareBook:
    """Everything that is measured beside the training code."""

    def __init__(self) -> None:
        self.gpus: dict[tuple[str, str], Device] = {}
        """By host and index."""
        self.hosts: dict[str, Device] = {}
        self.processes: dict[int, Device] = {}
        self.engines: dict[str, Device] = {}
        """By instance, as `host:port`."""

    def add(self, series: SeriesRow, sample: SampleRow) -> bool:
        """Take a sample of the hardware monitor; False for one that is none."""
        labels = series.labels
        host = labels.get("host") or labels.get("node") or labels.get("hostname") or ""
        kind, _, quantity = series.name.partition("_")
        if kind == "gpu" and "gpu" in labels and not series.name.startswith("gpu_process_"):
            key = (host, labels["gpu"])
            device = self.gpus.get(key)
            if device is None:
                device = self.gpus[key] = Device(host, labels["gpu"], series.process)
        elif kind == "node":
            device = self.hosts.get(host)
            if device is None:
                device = self.hosts[host] = Device(host, None, series.process)
        elif kind == "process":
            device = self.processes.get(series.process)
            if device is None:
                device = self.processes[series.process] = Device(host, None, series.process)
        else:
            return False
        device.add(quantity, sample)
        return True

    def add_engine(self, series: SeriesRow, sample: SampleRow, canonical: str) -> None:
        """Take a sample of an engine; with data parallelism, one instance has several of them.

        SGLang shows a queue once as a whole, without a priority, and once more for each priority.
        """
        labels = series.labels
        if labels.get("priority"):
            return
        instance = labels.get("instance") or f"process {series.process}"
        if part := labels.get("engine") or labels.get("dp_rank"):
            instance = f"{instance} engine {part}"
        device = self.engines.setdefault(instance, Device(instance, None, series.process))
        quantity = canonical.removeprefix("engine_")
        if quantity == "awake" and labels.get("sleep_state", "awake") != "awake":
            return
        if quantity == "finished":
            quantity = f"finished_{labels.get('finished_reason', 'other')}"
        device.add(quantity, sample)
