"""Which batches of a process have been taken, so that each counts once however often it is sent."""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import Final

MAX_GAPS: Final = 4096
"""Open gaps remembered per process. Beyond it the oldest is closed: its missing batches count as taken from then on."""
FIRST_ASSIGNED: Final = 2**48
"""Sequence numbers from here on were assigned by a receiver; no process makes so many batches."""


def first_assigned_sequence() -> int:
    """Return the first number for a sender that does not number its batches: the current time in microseconds.

    After a restart of the receiver they continue above those that it assigned before; a gap between them means nothing.
    """
    return max(time.time_ns() // 1000, FIRST_ASSIGNED)


class Ledger:
    """The sequence numbers taken from one process; they count from 1 and arrive in any order.

    They are kept as ranges, so memory grows with the gaps and not with the batches: an hour of batches that overtook
    an hour of spooled ones is two ranges. `low_water` and `above()` are the whole state, for a store to keep.

    >>> ledger = Ledger()
    >>> ledger.add(1), ledger.add(3), ledger.add(3)
    (True, True, False)
    >>> ledger.low_water, ledger.above(), ledger.batches, ledger.missing
    (1, '3-3', 2, 1)
    """

    __slots__ = ("_ranges", "abandoned", "low_water")

    def __init__(self, low_water: int = 0, above: str = "") -> None:
        self.low_water = low_water
        """Every sequence up to this one has been taken."""
        self.abandoned = 0
        """Batches that had not arrived when their gap was closed to bound memory."""
        self._ranges: list[tuple[int, int]] = []
        for part in above.split(",") if above else ():
            first, _, last = part.partition("-")
            self._ranges.append((int(first), int(last)))

    def above(self) -> str:
        """Return the ranges above the low-water mark as text."""
        return ",".join(f"{first}-{last}" for first, last in self._ranges)

    @property
    def has_gaps(self) -> bool:
        """Return whether a batch is missing below one that has been taken."""
        return bool(self._ranges)

    @property
    def batches(self) -> int:
        """The batches taken; low-water marks that a receiver assigned do not count."""
        return sum(last - first + 1 for first, last in self._ranges) + (0 if self._is_assigned else self.low_water)

    @property
    def missing(self) -> int:
        """The batches in the gaps; numbers that a receiver assigned have none."""
        if self._is_assigned or not self._ranges:
            return 0
        return self._ranges[-1][1] - self.batches

    @property
    def _is_assigned(self) -> bool:
        return (self._ranges[-1][1] if self._ranges else self.low_water) >= FIRST_ASSIGNED

    def add(self, sequence: int) -> bool:
        """Take a sequence number; False if it had been taken before."""
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
