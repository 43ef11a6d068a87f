"""Turns readings into metrics of the run."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rl_insight.hardware.base import Reading
from rl_insight.hardware.quantities import QUANTITIES
from rl_insight.producer import Producer

_INFO = "Which accelerator this is; always 1"
_STEADY_REFRESH_S = 60.0
_MAX_DEVICES = 100_000
"""Processes come and go: what is known about all of them is forgotten at this many."""


class ReadingRecorder:
    """Records readings through a monitor: gauges as they are, totals as the growth since the last reading."""

    def __init__(self, monitor: Producer) -> None:
        self._monitor = monitor
        self._devices: dict[tuple[str, tuple[str, str, str, int | None]], _Device] = {}

    def record(self, source: str, readings: Iterable[Reading]) -> None:
        """Record what one read of a source returned."""
        now = time.monotonic()
        for reading in readings:
            device = self._devices.get((source, reading.key))
            if device is None or device.uuid != reading.uuid:
                device = self._introduce(source, reading)
            self._record_device(device, reading, now)

    def _record_device(self, device: _Device, reading: Reading, now: float) -> None:
        gauge, labels = self._monitor.metric_gauge, device.labels
        is_time = now >= device.refresh_at
        if is_time:
            device.refresh_at = now + _STEADY_REFRESH_S
        for name, value in reading.values.items():
            quantity = QUANTITIES.get((reading.kind, name))
            if quantity is None:
                continue
            if quantity.cumulative:
                before = device.last.get(name, value)
                device.last[name] = value
                if value > before:  # a total that fell was reset: counting goes on from there
                    self._monitor.metric_count(quantity.metric, value - before, quantity.documentation, **labels)
                continue
            if quantity.steady:
                if device.last.get(name) == value and not is_time:
                    continue
                device.last[name] = value
            gauge(quantity.metric, value, quantity.documentation, **labels)

    def _introduce(self, source: str, reading: Reading) -> _Device:
        """Record once which device stands behind an index, so that the other series need not carry it."""
        if len(self._devices) >= _MAX_DEVICES:
            self._devices.clear()
        device = self._devices[source, reading.key] = _Device(source, reading)
        if reading.kind == "gpu" and (reading.uuid or reading.model):
            self._monitor.metric_gauge("gpu_info", 1.0, _INFO, **device.labels, uuid=reading.uuid, model=reading.model)
        return device


class _Device:
    """What is remembered of whatever a reading is about."""

    __slots__ = ("labels", "last", "refresh_at", "uuid")

    def __init__(self, source: str, reading: Reading) -> None:
        self.uuid = reading.uuid
        self.last: dict[str, float] = {}
        self.refresh_at = 0.0
        self.labels = {"source": source, "node": reading.node, "host": reading.host}
        if reading.index:
            self.labels["gpu"] = reading.index
        if reading.pid is not None:
            self.labels["pid"] = str(reading.pid)
