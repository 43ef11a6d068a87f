"""The accepted batches of a process, so that each one counts once no matter how often it is sent."""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import Final

MAX_GAPS: Final = 4096
"""Open gaps tracked per process. Beyond that the oldest is closed: its batches count as accepted from then on."""
FIRST_ASSIGNED: Final = 2**48
"""Receivers assign sequence numbers from here on; no process sends this many batches."""


def first_assigned_sequence() -> int:
    """Return the first number for a sender that does not number its batches: the current time in microseconds.

    After a restart, the receiver continues above the numbers it assigned before; gaps between them mean nothing.
    """
    return max(time.time_ns() // 1000, FIRST_ASSIGNED)


class Ledger:
    """The sequence numbers accepted from one process; they start at 1 and arrive in any order.

    They are stored as ranges, so memory grows with the gaps, not with the batches: an hour of batches that overtook an
    hour of spooled ones is two ranges. `low_water` and `above()` are the full state, for a store to persist.

    >>> ledger = Ledger()
    >>> ledger.add(1), ledger.add(3), ledger.add(3)
    (True, True, False)
    >>> ledger.low_water, ledger.above(), ledger.batches, ledger.missing
    (1, '3-3', 2, 1)
    """

    __slots__ = ("_ranges", "abandoned", "low_water")

    def __init__(self, low_water: int = 0, above: str = "") -> None:
        self.low_water = low_water
        """Every sequence number up to this one has been accepted."""
        self.abandoned = 0
        """Batches that had not arrived when their gap was closed to bound memory."""
        self._ranges: list[tuple[int, int]] = []
        for part in above.split(",") if above else ():
            first, _, last = part.partition("-")
            self._ranges.append((int(first), int(last)))

    def above(self) -> str:
        """Return the ranges above the low-water mark as a string."""
        return ",".join(f"{first}-{last}" for first, last in self._ranges)

    @property
    def has_gaps(self) -> bool:
        """Return whether a batch is missing below an accepted one."""
        return bool(self._ranges)

    @property
    def batches(self) -> int:
        """The number of accepted batches; low-water marks assigned by a receiver do not count."""
        return sum(last - first + 1 for first, last in self._ranges) + (0 if self._is_assigned else self.low_water)

    @property
    def missing(self) -> int:
        """The number of batches in the gaps; numbers assigned by a receiver have no gaps."""
        if self._is_assigned or not self._ranges:
            return 0
        return self._ranges[-1][1] - self.batches

    @property
    def _is_assigned(self) -> bool:
        return (self._ranges[-1][1] if self._ranges else self.low_water) >= FIRST_ASSIGNED

    def add(self, sequence: int) -> bool:
        """Accept a sequence number; False for a duplicate."""
        if sequence <= self.low_water:
            return False
        if sequence == self.low_water + 1:
            self.low_water = sequence
            if self._ranges and self._ranges[0][0] == sequence + 1:
                self.low_water = self._ranges.pop(0)[1]
            return True
        if not self._insert(sequence):
            return False
        if len(self._ranges) > MAX_GAPS:
            self._close_oldest_gap()
        return True

    def _insert(self, sequence: int) -> bool:
        ranges = self._ranges
        place = bisect_left(ranges, (sequence + 1,))
        if place and ranges[place - 1][1] >= sequence:
            return False
        first = last = sequence
        if place < len(ranges) and ranges[place][0] == sequence + 1:
            last = ranges.pop(place)[1]
        if place and ranges[place - 1][1] == sequence - 1:
            place -= 1
            first = ranges.pop(place)[0]
        ranges.insert(place, (first, last))
        return True

    def _close_oldest_gap(self) -> None:
        first, last = self._ranges.pop(0)
        if first < FIRST_ASSIGNED:
            self.abandoned += first - self.low_water - 1
        self.low_water = last
