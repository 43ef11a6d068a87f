"""Whether the server keeps up with its senders: if it does not, the silence of a process means nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from rl_insight.store.writer import Committed

LATE_NS: Final = 5_000_000_000
"""A thread that wakes up this late means that the server was suspended or starved."""
_NOTABLE_NS: Final = 1_000_000_000
_REMEMBERED_NS: Final = 30_000_000_000
_LARGEST_NS: Final = 60_000_000_000
"""A process that sends batches spooled for hours must not stop the diagnosis of the others."""


class IngestDelay:
    """Tracks how far the server is behind, which decides whether silence is significant; thread-safe."""

    def __init__(self, started_ns: int) -> None:
        self.since_ns = started_ns
        """When the server started listening: a process that has not reported since then is silent."""
        self._late = (0, 0)
        """The largest recent delay of a delivery, and when it arrived."""

    def note(self, committed: Sequence[Committed], now_ns: int) -> None:
        """Compare the delivery time of batches with the fastest one of their senders."""
        for one in committed:
            quickest_ns = one.intake.clock.delay_ns
            late_ns = 0 if quickest_ns is None or not one.new else now_ns - one.batch.sent_ns - quickest_ns
            if late_ns > _NOTABLE_NS and late_ns >= self.behind_ns(now_ns):
                self._late = (min(late_ns, _LARGEST_NS), now_ns)

    def behind_ns(self, now_ns: int) -> int:
        """Return how far the server is behind: more recent data is incomplete."""
        late_ns, arrived_ns = self._late
        return late_ns if now_ns - arrived_ns < _REMEMBERED_NS else 0

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Wait like `Event.wait`, and detect when that takes far too long."""
        began = time.monotonic_ns()
        is_set = stop.wait(seconds)
        if time.monotonic_ns() - began > seconds * 1e9 + LATE_NS:
            self.since_ns = time.time_ns()
        return is_set
