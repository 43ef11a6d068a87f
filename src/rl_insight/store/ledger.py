"""Which batches of a process are in, and how far its clock is off."""

from __future__ import annotations

from bisect import bisect_left

MAX_RANGES = 256
"""A gap that is never filled is a batch its sender gave up; only so many of the newest are kept open."""

_SMALL_DELAY_NS = 10_000_000
_LARGE_DELAY_NS = 200_000_000
_STEADY_NS = 100_000_000
_STEADY_HITS = 3


class Ledger:
    """The sequence numbers taken from one process.

    >>> ledger = Ledger()
    >>> ledger.add(1), ledger.add(3), ledger.add(3)
    (True, True, False)
    >>> ledger.low_water, ledger.above()
    (1, '3-3')
    """

    __slots__ = ("_ranges", "low_water")

    def __init__(self, low_water: int = 0, above: str = "") -> None:
        self.low_water = low_water
        self._ranges: list[tuple[int, int]] = []
        for part in above.split(",") if above else ():
            first, _, last = part.partition("-")
            self._ranges.append((int(first), int(last)))

    def above(self) -> str:
        """Return the ranges above the low water mark as text."""
        return ",".join(f"{first}-{last}" for first, last in self._ranges)

    def add(self, sequence: int) -> bool:
        """Take a number; False if it had been taken before."""
        if sequence <= self.low_water:
            return False
        if sequence == self.low_water + 1:
            self.low_water = sequence
            self._close_gap()
            return True
        if not self._insert(sequence):
            return False
        if len(self._ranges) > MAX_RANGES:
            self.low_water = self._ranges.pop(0)[1]
        return True

    def _close_gap(self) -> None:
        if self._ranges and self._ranges[0][0] == self.low_water + 1:
            self.low_water = self._ranges.pop(0)[1]

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


def next_delay(delay_ns: int | None, hits: int, seen_ns: int) -> tuple[int, int]:
    """Fold one batch's delay (received minus sent) into the smallest one seen, and how often it was seen.

    A steady delay is a clock that is off; delays that vary are batches that waited in a spool.
    """
    if delay_ns is None:
        return seen_ns, 1
    if seen_ns >= delay_ns:
        return delay_ns, hits + 1 if seen_ns - delay_ns <= _STEADY_NS else hits
    return seen_ns, hits + 1 if delay_ns - seen_ns <= _STEADY_NS else 1


def clock_offset(delay_ns: int | None, hits: int) -> int:
    """Return what to add to a process's times so that they fit the server's clock.

    A batch cannot arrive before it was sent, so a negative delay is the clock's fault at once. A positive one may be
    the network or a spool: it counts as the clock's only when it is large and steady.
    """
    if delay_ns is None or abs(delay_ns) <= _SMALL_DELAY_NS:
        return 0
    if delay_ns < 0:
        return delay_ns
    return delay_ns if delay_ns > _LARGE_DELAY_NS and hits >= _STEADY_HITS else 0
