"""A process's clock: anchored once to wall-clock time, then monotonic."""

from __future__ import annotations

import time
from collections.abc import Callable

from rl_insight.schema.tables import LAST_TIME_NS

_STEPPED_NS = 250_000_000


class Clock:
    """Reads monotonic nanoseconds and converts them to wall-clock time.

    Durations use only monotonic time, so a corrected system clock never makes a span negative.

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
        """Re-anchor if the wall clock was stepped or the machine slept; the receiver corrects slow drift."""
        offset = self._offset_ns()
        if abs(offset - self.offset_ns) > _STEPPED_NS:
            self.offset_ns = offset

    def _offset_ns(self) -> int:
        # A thread preempted between the two reads gets too small a difference; three in a row are rarely preempted.
        return max(min(max(self._wall(), 0), LAST_TIME_NS) - self.now() for _ in range(3))
