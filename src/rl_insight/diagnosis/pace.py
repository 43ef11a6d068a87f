"""How fast everything goes, compared with the minutes before.

A machine that is busy with something else slows all work alike; a fault slows one thing.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import Column, median
from rl_insight.diagnosis.rows import SECOND

Work = tuple[str, str]
"""A role and the name of a state or phase."""

_KEPT_MOMENTS: Final = 720
_BEFORE_NS: Final = 300 * SECOND
_LEAST_SPANS: Final = 3
_LEAST_KINDS: Final = 3
_LATE_NS: Final = 5 * SECOND
"""What ended in a window is noted at the end of its moment."""


class PaceBook:
    """How long each kind of work took in each moment."""

    def __init__(self) -> None:
        self._moments: deque[tuple[int, dict[Work, tuple[float, int]]]] = deque(maxlen=_KEPT_MOMENTS)

    def begin(self, as_of_ns: int) -> None:
        """Begin a moment."""
        self._moments.append((as_of_ns, {}))

    def note(self, work: Work, seconds: Column) -> None:
        """Take the durations of one kind of work in this moment."""
        if seconds.size and state_kind(work[1]) != "wait":
            self._moments[-1][1][work] = (float(np.median(seconds)), seconds.size)

    def slowdown(self, start_ns: int, end_ns: int, without: str | None = None) -> float:
        """Return how much longer all work took in a window than in the five minutes before it; 1 at least.

        One kind of work that is slow changes nothing, as it is the median over all kinds; `without` leaves one out.
        """
        now = self._usual(start_ns, end_ns + _LATE_NS, 1)
        before = self._usual(start_ns - _BEFORE_NS, start_ns, _LEAST_SPANS)
        found = [now[work] / max(before[work], 1e-9) for work in now if work in before and work[1] != without]
        return max(1.0, median(found)) if len(found) >= _LEAST_KINDS else 1.0

    def _usual(self, start_ns: int, end_ns: int, least: int) -> dict[Work, float]:
        """Return how long each kind of work took in a window, of those that ended in it so often."""
        seconds: dict[Work, list[float]] = {}
        counts: dict[Work, int] = {}
        for as_of_ns, kinds in reversed(self._moments):
            if as_of_ns <= start_ns:
                break
            if as_of_ns > end_ns:
                continue
            for work, (taken, count) in kinds.items():
                seconds.setdefault(work, []).append(taken)
                counts[work] = counts.get(work, 0) + count
        return {work: median(some) for work, some in seconds.items() if counts[work] >= least}
