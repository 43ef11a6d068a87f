"""Means over a step: what arrived since the last time somebody asked."""

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


class _Sum:
    __slots__ = ("carried", "count", "host", "total")

    def __init__(self, host: str) -> None:
        self.host = host
        self.total = 0.0
        self.count = 0
        self.carried = 0.0
        """A measurement of an earlier step, seen again: the best there is until a new one comes."""

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else self.carried


class StepMeans:
    """Adds up readings until they are drained; safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, str, str, int | None, str], _Sum] = {}
        self._stamps: dict[tuple[str, str, str, int | None], int] = {}
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
                if reading.kind in ("node", "gpu"):
                    self._node_indexes.setdefault(reading.node, len(self._node_indexes))
                is_repeat = reading.stamp != 0 and self._stamps.get(reading.key) == reading.stamp
                if not is_repeat:
                    fresh.append(reading)
                    self._stamps[reading.key] = reading.stamp
                self._add_values(reading, is_repeat=is_repeat)
        return fresh

    def _add_values(self, reading: Reading, *, is_repeat: bool) -> None:
        for quantity, value in reading.values.items():
            known = QUANTITIES.get((reading.kind, quantity))
            if known is None or known.cumulative or quantity == "up" or not isfinite(value):
                continue
            key = (*reading.key, quantity)
            cell = self._sums.get(key)
            if cell is None:
                cell = self._sums[key] = _Sum(reading.host)
            if is_repeat:
                cell.carried = value
            else:
                cell.total += value
                cell.count += 1

    def drain(self) -> list[StepMean]:
        """Return the means so far and start over. Of several threads that drain at once, one gets them."""
        with self._lock:
            sums, self._sums = self._sums, {}
            indexes = dict(self._node_indexes)
        return [
            StepMean(indexes.get(node, -1), node, cell.host, kind, index, pid, quantity, cell.mean)
            for (node, kind, index, pid, quantity), cell in sums.items()
        ]
