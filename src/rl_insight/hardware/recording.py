"""Turns readings into metrics of the run."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rl_insight.hardware.base import Reading
from rl_insight.hardware.quantities import QUANTITIES, Quantity
from rl_insight.producer import Producer

_INFO = "UUID and model of the accelerator, as labels; always 1"
_STEADY_REFRESH_S = 60.0
_MAX_DEVICES = 100_000
"""Processes come and go: beyond this many devices, all of them are evicted."""
_BY_KIND = {
    kind: {name: quantity for (of_kind, name), quantity in QUANTITIES.items() if of_kind == kind}
    for kind, _name in QUANTITIES
}


class ReadingRecorder:
    """Records readings through a monitor: gauges directly, totals as the increase since the last reading."""

    def __init__(self, monitor: Producer) -> None:
        self._monitor = monitor
        self._devices: dict[str, dict[tuple[str, str, str, int | None], _RecordedDevice]] = {}
        """By source and device."""

    def record(self, source: str, readings: Iterable[Reading]) -> None:
        """Record the readings of one read of a source."""
        now = time.monotonic()
        devices = self._devices.setdefault(source, {})
        for reading in readings:
            key = reading.key
            device = devices.get(key)
            if device is None or device.uuid != reading.uuid:
                device = devices[key] = self._new_device(source, reading)
            self._record_device(device, reading, now)
        if len(devices) > _MAX_DEVICES:
            devices.clear()

    def _record_device(self, device: _RecordedDevice, reading: Reading, now: float) -> None:
        is_time = now >= device.refresh_at
        if is_time:
            device.refresh_at = now + _STEADY_REFRESH_S
        gauges = []
        quantities, last = _BY_KIND[reading.kind], device.last
        for name, value in reading.values.items():
            quantity = quantities.get(name)
            if quantity is None:
                continue
            if quantity.cumulative:
                self._count(device, quantity, value)
                continue
            if quantity.steady:
                if last.get(name) == value and not is_time:
                    continue
                last[name] = value
            gauges.append((quantity.metric, value, quantity.documentation))
        if gauges:
            self._monitor._record_gauges(gauges, device.labels)

    def _count(self, device: _RecordedDevice, quantity: Quantity, value: float) -> None:
        before = device.last.get(quantity.name, value)
        device.last[quantity.name] = value
        if value > before:  # a total that decreased was reset: counting continues from there
            self._monitor.metric_count(quantity.metric, value - before, quantity.documentation, **device.labels)

    def _new_device(self, source: str, reading: Reading) -> _RecordedDevice:
        """Record once which device an index refers to, so that the other series do not need these labels."""
        device = _RecordedDevice(source, reading)
        if reading.kind == "gpu" and (reading.uuid or reading.model):
            self._monitor.metric_gauge("gpu_info", 1.0, _INFO, **device.labels, uuid=reading.uuid, model=reading.model)
        return device


class _RecordedDevice:
    """The last values and the labels of a device."""

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
