"""Means over a step, of all readings since the last flush."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

import msgspec

from rl_insight.hardware.base import Reading
from rl_insight.hardware.quantities import QUANTITIES


class StepMean(msgspec.Struct, frozen=True):
    """The mean of one quantity of one device over a step."""

    node_index: int
    """0, 1, ...: in the order in which nodes were first seen. A node keeps its number, which is never reused."""
    node: str
    host: str
    kind: str
    index: str
    pid: int | None
    quantity: str
    mean: float
    model: str = ""
    """The device's name, if its source provides it."""


@dataclass(slots=True)
class _Sum:
    host: str
    model: str
    total: float = 0.0
    count: int = 0
    carried: float = 0.0
    """A measurement of an earlier step, read again: the best available value until a new one arrives."""

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
"""The quantities that have a mean, by kind of device."""


class StepMeans:
    """Sums readings until they are drained; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[DeviceKey, dict[str, _Sum]] = {}
        self._stamps: dict[DeviceKey, int] = {}
        self._node_indexes: dict[str, int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there were no readings since the last drain."""
        return not self._sums

    def add(self, readings: Iterable[Reading]) -> list[Reading]:
        """Add readings; return those that are new measurements."""
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
        """Return the means so far and start over. If several threads drain at once, one of them gets the means."""
        with self._lock:
            sums, self._sums = self._sums, {}
            indexes = dict(self._node_indexes)
        return [
            StepMean(indexes.get(node, -1), node, cell.host, kind, index, pid, quantity, cell.mean, cell.model)
            for (node, kind, index, pid), cells in sums.items()
            for quantity, cell in cells.items()
        ]
