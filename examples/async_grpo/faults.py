"""Injected faults that diagnosis has to find, as real behavior of the example."""

from __future__ import annotations

import os
import signal
import time

FAULTS = {
    "slow_tool": "the calculator takes 1.5 s longer",
    "tool_errors": "the calculator fails every third call",
    "slow_reward": "scoring takes 1.5 s",
    "blocked_reward": "scoring never returns",
    "failing_reward": "scoring raises an error every third time",
    "zero_reward": "the verifier returns 0 for everything",
    "slow_rollout": "worker 1 generates 3 times slower",
    "dead_rollout": "worker 1 freezes silently",
    "slow_update": "updates take 2 s longer",
    "stuck_update": "an update never ends",
    "slow_sync": "publishing weights takes 3 s",
    "stuck_sync": "publishing weights never ends",
    "slow_data": "loading data takes 2 s",
    "lost_time": "2 s pass between the states of a step",
    "not_a_number": "the loss is NaN",
    "kl_blowup": "the reported KL explodes",
    "stale": "the reported staleness is 12",
}
"""Effects from step `fault_at` on, by name."""

VICTIM = 1
"""The rank of the faulty worker."""


class Fault:
    """The fault of a run, if it has one."""

    def __init__(self, name: str | None, at: int) -> None:
        self._name = name
        self._at = at

    def is_on(self, name: str, step: int) -> bool:
        """Return whether a fault is active in a step."""
        return self._name == name and step >= self._at

    def delay(self, name: str, step: int, seconds: float) -> None:
        """Take longer, if a fault is active."""
        if self.is_on(name, step):
            time.sleep(seconds)

    def hang(self, name: str, step: int) -> None:
        """Never return, if a fault is active."""
        while self.is_on(name, step):
            time.sleep(1.0)

    def freeze(self, name: str, step: int) -> None:
        """Freeze this process silently, if a fault is active."""
        if self.is_on(name, step):
            os.kill(os.getpid(), signal.SIGSTOP)


NO_FAULT = Fault(None, 0)
