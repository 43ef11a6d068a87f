"""Means over a step: what arrived since the last flush."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from math import isfinite

import msgspec

from rl_insight.hardware.base import Reading
from rl_insight.hardware.quantities import QUANTITIES


class StepMean(msgspec.Struct, frozen=True):
    """The mean of one quantity of one device over a step."""

    node_index: int
    """0, 1, ...: in the order in which nodes were first seen; a node keeps its number, and it is never given again."""
    node: str
    host: str
    kind: str
    index: str
    pid: int | None
    quantity: str
    mean: float
    model: str = ""
    """The device's name, where its source knows it."""


class _Sum:
    __slots__ = ("carried", "count", "host", "model", "total")

    def __init__(self, host: str, model: str) -> None:
        self.host = host
        self.model = model
        self.total = 0.0
        self.count = 0
        self.carried = 0.0
        """A measurement of an earlier step, seen again: the best there is until a new one comes."""

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else self.carried


DeviceKey = tuple[str, str, str, "int | None"]

_AVERAGED: dict[str, frozenset[str]] = {
    kind: frozenset(
        name
        for (of_kind, name), known in QUANTITIES.items()
        if of_kind == kind and name != "up" and not known.cumulative
    )
    for kind, _name in QUANTITIES
}
"""For each kind of device the quantities that have a mean."""


class StepMeans:
    """Adds up readings until they are drained; safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[DeviceKey, dict[str, _Sum]] = {}
        self._stamps: dict[DeviceKey, int] = {}
        self._node_indexes: dict[str, int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing arrived since the last drain."""
        return not self._sums

    def add(self, readings: Iterable[Reading]) -> list[Reading]:
        """Take readings in; returns those that show a new measurement."""
        fresh = []
        with self._lock:
            for reading in readings:
                key, stamp = reading.key, reading.stamp
                if reading.node not in self._node_indexes and reading.kind in ("node", "gpu"):
                    self._node_indexes[reading.node] = len(self._node_indexes)
                is_repeat = stamp != 0 and self._stamps.get(key) == stamp
                if not is_repeat:
                    fresh.append(reading)
                    self._stamps[key] = stamp
                self._add_values(key, reading, is_repeat=is_repeat)
        return fresh

    def _add_values(self, key: DeviceKey, reading: Reading, *, is_repeat: bool) -> None:
        averaged = _AVERAGED[reading.kind]
        sums = self._sums.get(key, {})
        for quantity, value in reading.values.items():
            if quantity not in averaged or not isfinite(value):
                continue
            cell = sums.get(quantity)
            if cell is None:
                cell = sums[quantity] = _Sum(reading.host, reading.model)
            if is_repeat:
                cell.carried = value
            else:
                cell.total += value
                cell.count += 1
        if sums:
            self._sums[key] = sums

    def drain(self) -> list[StepMean]:
        """Return the means so far and start over. Of several threads that drain at once, one gets them."""
        with self._lock:
            sums, self._sums = self._sums, {}
            indexes = dict(self._node_indexes)
        return [
            StepMean(indexes.get(node, -1), node, cell.host, kind, index, pid, quantity, cell.mean, cell.model)
            for (node, kind, index, pid), cells in sums.items()
            for quantity, cell in cells.items()
        ]
