"""A process's clock: anchored once to the wall, then monotonic."""

from __future__ import annotations

import time
from collections.abc import Callable

_STEPPED_NS = 250_000_000
LATEST_NS = 2**62
"""The end of representable time, in the year 2116: a clock that is further ahead is broken and counts as this."""


class Clock:
    """Reads monotonic nanoseconds, and tells which wall-clock time a reading was.

    Durations come from monotonic readings alone, so a corrected system clock never makes a span negative.

    >>> clock = Clock()
    >>> abs(clock.wall_ns(clock.now()) - time.time_ns()) < 1_000_000_000
    True
    """

    __slots__ = ("_wall", "now", "offset_ns")

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns, wall: Callable[[], int] = time.time_ns) -> None:
        self.now = now
        self._wall = wall
        self.offset_ns = self._offset_ns()

    def wall_ns(self, reading: int) -> int:
        """Return the wall-clock time of a monotonic reading."""
        return reading + self.offset_ns

    def follow_steps(self) -> None:
        """Take a new anchor if the wall clock was stepped or the machine slept; slow drift is the receiver's to see."""
        offset = self._offset_ns()
        if abs(offset - self.offset_ns) > _STEPPED_NS:
            self.offset_ns = offset

    def _offset_ns(self) -> int:
        # A thread that loses its turn between the two readings gets too small a difference; all of three rarely do.
        return max(min(max(self._wall(), 0), LATEST_NS) - self.now() for _ in range(3))
