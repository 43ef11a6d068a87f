"""How far a process's clock is from ours."""

from __future__ import annotations

from collections import deque

_SECOND = 1_000_000_000


class ClockOffset:
    """Estimates one process's clock offset from when its batches were made and when they arrived.

    Adding `offset_ns` to a time of the process gives the time on our clock. A batch is never early, so the smallest
    ``received - sent`` of the last `window_s` seconds is the difference of the clocks plus the quickest delivery.
    A batch that was delayed or replayed from a spool only shows a larger difference. Where nothing but such batches
    arrive, the estimate rises no faster than clocks drift; a difference that stays for `step_after_s` is believed.

    >>> clock = ClockOffset()
    >>> clock.observe(sent_ns=1_000, received_ns=5_000)
    >>> clock.observe(sent_ns=2_000, received_ns=900_000)
    >>> clock.offset_ns
    4000
    """

    __slots__ = ("_believed_ns", "_doubted_ns", "_drift", "_minima", "_offset", "_step_after", "_window")

    def __init__(self, *, window_s: float = 120.0, max_drift: float = 0.0005, step_after_s: float = 900.0) -> None:
        self._window = int(window_s * _SECOND)
        self._drift = max_drift
        self._step_after = int(step_after_s * _SECOND)
        # (received, difference), both ascending: an entry that a later, smaller one outlives is of no use.
        self._minima: deque[tuple[int, int]] = deque()
        self._offset: int | None = None
        self._believed_ns = 0
        self._doubted_ns: int | None = None

    @property
    def offset_ns(self) -> int | None:
        """What to add to the process's times; None before the first batch."""
        return self._offset

    def observe(self, *, sent_ns: int, received_ns: int) -> None:
        """Take note of one batch: when it was made, by its process's clock, and when it arrived, by ours."""
        difference = received_ns - sent_ns
        minima = self._minima
        while minima and minima[-1][1] >= difference:
            minima.pop()
        minima.append((received_ns, difference))
        while minima[0][0] < received_ns - self._window:
            minima.popleft()
        self._believe(minima[0][1], received_ns)

    def _believe(self, smallest: int, now_ns: int) -> None:
        if self._offset is not None and smallest > self._offset:
            drifted = int(max(now_ns - self._believed_ns, 0) * self._drift)
            # Counted from the first doubtful arrival, not from the last good one: after a long outage everything
            # that is replayed looks late, and none of it says anything about the clock.
            doubted_ns = self._doubted_ns = now_ns if self._doubted_ns is None else self._doubted_ns
            if smallest > self._offset + drifted and now_ns - doubted_ns <= self._step_after:
                return
        self._offset, self._believed_ns, self._doubted_ns = smallest, now_ns, None
