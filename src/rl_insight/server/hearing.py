"""Since when the server has kept up with what is sent to it: silence before that says nothing about a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from rl_insight.store.writer import Committed

LATE_NS: Final = 5_000_000_000
"""A delivery that takes this much longer than its sender's quickest, or a thread that wakes up this much late, shows a
server that was suspended, starved or overrun."""


class Hearing:
    """What a server concludes from silence; safe to use from several threads."""

    def __init__(self, started_ns: int) -> None:
        self.since_ns = started_ns
        """From when on a process that is not heard is silent, and not merely unheard."""

    def note(self, committed: Sequence[Committed], now_ns: int) -> None:
        """Look at how long batches took from their senders to the disk."""
        for one in committed:
            quickest_ns = one.intake.clock.delay_ns
            if one.new and quickest_ns is not None and now_ns - one.batch.sent_ns - quickest_ns > LATE_NS:
                self.since_ns = max(self.since_ns, now_ns)

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Wait for an event as `Event.wait` does, and notice when that takes far too long."""
        began = time.monotonic_ns()
        is_set = stop.wait(seconds)
        if time.monotonic_ns() - began > seconds * 1e9 + LATE_NS:
            self.since_ns = time.time_ns()
        return is_set
