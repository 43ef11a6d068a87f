"""Turns readings into metrics of the run."""

from __future__ import annotations

from collections.abc import Iterable

from rl_insight.hardware.base import Reading
from rl_insight.hardware.quantities import QUANTITIES, Quantity
from rl_insight.producer import Producer

Key = tuple[str, str, str, int | None]

_INFO = "Which accelerator this is; always 1"


class ReadingRecorder:
    """Records readings through a monitor: gauges as they are, totals as the growth since the last reading."""

    def __init__(self, monitor: Producer) -> None:
        self._monitor = monitor
        self._totals: dict[tuple[str, Key, str], float] = {}
        self._introduced: set[tuple[str, Key, str]] = set()

    def record(self, source: str, readings: Iterable[Reading]) -> None:
        """Record what one read of a source returned."""
        gauge = self._monitor.metric_gauge
        for reading in readings:
            labels = _labels(source, reading)
            if reading.uuid or reading.model:
                self._introduce(source, reading, labels)
            for name, value in reading.values.items():
                quantity = QUANTITIES.get((reading.kind, name))
                if quantity is None:
                    continue
                if quantity.cumulative:
                    self._count(source, reading, quantity, value, labels)
                else:
                    gauge(quantity.metric, value, quantity.documentation, **labels)

    def _count(self, source: str, reading: Reading, quantity: Quantity, total: float, labels: dict[str, str]) -> None:
        key = (source, reading.key, quantity.name)
        before = self._totals.get(key)
        self._totals[key] = total
        if before is not None and total > before:  # a total that fell was reset: counting goes on from there
            self._monitor.metric_count(quantity.metric, total - before, quantity.documentation, **labels)

    def _introduce(self, source: str, reading: Reading, labels: dict[str, str]) -> None:
        """Record once which device stands behind an index, so that the other series need not carry it."""
        key = (source, reading.key, reading.uuid)
        if reading.kind == "gpu" and key not in self._introduced:
            self._introduced.add(key)
            self._monitor.metric_gauge("gpu_info", 1.0, _INFO, **labels, uuid=reading.uuid, model=reading.model)


def _labels(source: str, reading: Reading) -> dict[str, str]:
    labels = {"source": source, "node": reading.node, "host": reading.host}
    if reading.index:
        labels["gpu"] = reading.index
    if reading.pid is not None:
        labels["pid"] = str(reading.pid)
    return labels
