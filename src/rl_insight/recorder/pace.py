"""How often a process flushes: at its configured interval, or less often if the server asks for it."""

from __future__ import annotations

import time
from math import inf, isfinite

import msgspec

from rl_insight.config.model import RecorderConfig
from rl_insight.schema import Process

_FAILURE_EVERY_S = 1.0
"""Failures are sent at once, but at most this often: a program that fails constantly fills its batches anyway."""


class FlushPace:
    """The time between batches.

    A server with many processes asks each of them for fewer, larger batches. Failures and stuck work are still sent
    early: failures within a second, stuck work once per interval.

    >>> pace = FlushPace(RecorderConfig(flush_interval_s=0.5, max_flush_interval_s=10.0))
    >>> pace.follow(4.0)
    >>> pace.interval_s, pace.is_slowed
    (4.0, True)
    """

    def __init__(self, config: RecorderConfig) -> None:
        self._own_s = config.flush_interval_s
        self._longest_s = max(config.max_flush_interval_s, config.flush_interval_s)
        self._heartbeat_s = config.heartbeat_s
        self.interval_s = self._own_s
        self._last_failure_s = self._last_stuck_s = -inf  # the clock may count from boot
        self._process: Process | None = None

    def follow(self, wanted_s: float) -> None:
        """Adopt the interval requested by the server, within the configured bounds; 0 means no preference."""
        if isfinite(wanted_s):
            self.interval_s = min(max(wanted_s, self._own_s), self._longest_s)

    @property
    def is_slowed(self) -> bool:
        """Return whether flushes are less frequent than configured."""
        return self.interval_s > self._own_s

    def wait_s(self, next_flush: float) -> float:
        """Return how long to wait before the buffers are emptied again."""
        return max(0.0, min(next_flush - time.monotonic(), self._own_s))

    def is_early(self, *, is_failing: bool, is_stuck: bool) -> bool:
        """Return whether a failure or stuck work must be sent before the next flush."""
        now = time.monotonic()
        if is_failing and now - self._last_failure_s >= _FAILURE_EVERY_S:
            self._last_failure_s = now
            return True
        if is_stuck and now - self._last_stuck_s >= self.interval_s:
            self._last_stuck_s = now
            return True
        return False

    def with_heartbeat(self, process: Process) -> Process:
        """Return the process with its current heartbeat: one that sends less often may be silent for longer."""
        if self.interval_s <= self._heartbeat_s:
            return process
        if self._process is None or self._process.heartbeat_s != self.interval_s:
            self._process = msgspec.structs.replace(process, heartbeat_s=self.interval_s)
        return self._process
