"""How often processes should send: less often if there are many, or if the server falls behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from rl_insight.store.writer import WriterStatus

SHORTEST_S: Final = 0.5
LONGEST_S: Final = 10.0
BATCHES_PER_S: Final = 1_000
"""The target for all processes together; a core can handle a few times as many."""
_WINDOW_S: Final = 15.0
"""Every process that follows the advice sends at least once per window."""
_LOOK_EVERY_S: Final = 1.0
_LAG_S: Final = 2.0
_MAX_PRESSURE: Final = 16.0
_BUSY_SHARE, _IDLE_SHARE = 0.5, 0.2
"""The thread that receives batches also serves the page: above the first share, views become slow."""


class FlushAdvice:
    """The flush interval that acknowledgments request; used by one thread.

    >>> advice = FlushAdvice(idle_status)  # doctest: +SKIP
    >>> advice.interval_s(f"p{number}" for number in range(4_000))  # doctest: +SKIP
    4.0

    Args:
        status: returns the status of the store's writer.
        clock: monotonic seconds.
        cpu_clock: CPU seconds of the calling thread, which receives the requests.
    """

    def __init__(
        self,
        status: Callable[[], WriterStatus],
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._status = status
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._used_s: float | None = None
        self._window: set[str] = set()
        self._last_window = 0
        """The number of senders in the previous window."""
        self._window_began = self._looked = clock()
        self._pressure = 1.0

    def interval_s(self, senders: Iterable[str]) -> float:
        """Note the senders, and return the flush interval for them."""
        now = self._clock()
        if now - self._window_began >= _WINDOW_S:
            self._last_window, self._window, self._window_began = len(self._window), set(), now
        self._window.update(senders)
        if now - self._looked >= _LOOK_EVERY_S:
            self._pressure = self._next_pressure(self._busy_share(now - self._looked))
            self._looked = now
        processes = max(len(self._window), self._last_window)
        wanted = max(SHORTEST_S, processes / BATCHES_PER_S) * self._pressure
        return min(round(wanted, 1), LONGEST_S)

    def _busy_share(self, elapsed_s: float) -> float:
        """Return the share of the time since the last check that this thread was busy."""
        used_s = self._cpu_clock()
        before_s = used_s if self._used_s is None else self._used_s
        self._used_s = used_s
        return (used_s - before_s) / elapsed_s

    def _next_pressure(self, busy_share: float) -> float:
        status = self._status()
        is_behind = status.lag_s > _LAG_S or status.pending_bytes > status.max_pending_bytes / 4
        if is_behind or busy_share > _BUSY_SHARE:
            return min(self._pressure * 2, _MAX_PRESSURE)
        if busy_share > _IDLE_SHARE:
            return self._pressure
        return max(self._pressure / 2, 1.0)
