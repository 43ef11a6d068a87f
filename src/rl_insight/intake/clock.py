"""The clock offset of a process."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

_WINDOW_NS: Final = 120_000_000_000
_STEP_AFTER_NS: Final = 900_000_000_000
_MAX_DRIFT: Final = 0.0005
_SMALL_NS: Final = 10_000_000
_LARGE_NS: Final = 200_000_000
_STEADY_NS: Final = 100_000_000
_STEADY_HITS: Final = 3
_LONGEST_NS = 2**61
"""73 years, enough for a clock that starts in 1970; larger offsets would overflow sums of timestamps."""


class ClockOffset(msgspec.Struct, eq=False):
    """Estimates a process's clock offset from the send and receive times of its batches.

    A batch is never early, so the smallest ``received - sent`` of the last two minutes, the delay, is the
    clock difference plus the fastest delivery. Delayed batches, and those replayed from a spool, only show larger
    differences. While nothing else arrives, the estimate rises no faster than clocks drift; a difference that persists
    for 15 minutes is accepted.

    A negative delay must come from the clock. A positive one may come from the network or a spool: it is attributed to
    the clock if it exceeds 0.2 s and was seen three times within 0.1 s. A store persists `delay_ns` and `hits`;
    `believed_ns` is when they were last confirmed.

    >>> clock = ClockOffset()
    >>> clock.observe(sent_ns=5_000_000_000, received_ns=2_000_000_000)
    >>> clock.observe(sent_ns=6_000_000_000, received_ns=3_900_000_000)
    >>> clock.offset_ns
    -3000000000
    """

    delay_ns: int | None = None
    hits: int = 0
    believed_ns: int = 0
    # (received, difference), both ascending: a later, smaller difference supersedes earlier ones.
    _minima: deque[tuple[int, int]] = msgspec.field(default_factory=deque)
    _doubted_ns: int | None = None

    @property
    def offset_ns(self) -> int:
        """Add this to the process's timestamps to get ours; 0 unless its clock is known to be off."""
        delay = self.delay_ns
        if delay is None or abs(delay) <= _SMALL_NS:
            return 0
        is_clock = delay < 0 or (delay > _LARGE_NS and self.hits >= _STEADY_HITS)
        return delay if is_clock else 0

    def observe(self, *, sent_ns: int, received_ns: int) -> None:
        """Record a batch: when it was sent, on the process's clock, and when it arrived, on ours."""
        difference = max(-_LONGEST_NS, min(received_ns - sent_ns, _LONGEST_NS))
        minima = self._minima
        while minima and minima[-1][1] >= difference:
            minima.pop()
        minima.append((received_ns, difference))
        while minima[0][0] < received_ns - _WINDOW_NS:
            minima.popleft()
        known = self.delay_ns
        if known is None or difference < known - _STEADY_NS:
            self.hits = 1
        elif difference <= known + _STEADY_NS:
            self.hits = min(self.hits + 1, _STEADY_HITS)
        self._update_delay(minima[0][1], received_ns)

    def _update_delay(self, smallest: int, now_ns: int) -> None:
        if self.delay_ns is not None and smallest > self.delay_ns:
            drifted = int(max(now_ns - self.believed_ns, 0) * _MAX_DRIFT)
            # Counted from the first doubtful arrival, not from the last good one: after a long outage all replayed
            # batches look late, which says nothing about the clock.
            doubted_ns = self._doubted_ns = now_ns if self._doubted_ns is None else self._doubted_ns
            if smallest > self.delay_ns + drifted:
                if now_ns - doubted_ns <= _STEP_AFTER_NS:
                    return
                self.hits = _STEADY_HITS
        self.delay_ns, self.believed_ns, self._doubted_ns = smallest, now_ns, None
