"""What a tracker is to us, and how several of them are fed without making anyone wait."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

logger = logging.getLogger("rl_insight")


class Tracker(ABC):
    """Writes scalars to an experiment tracker.

    - `log` is called by one thread at a time, never by the training thread. It MAY block and MAY raise; the values are
      then counted as failed.
    - Steps may repeat and may go back: a tracker MUST keep such values in the best way that its library has.
    - The library MUST NOT be imported before the tracker is made.
    - `close` MUST be idempotent, and end only what the tracker itself began: a run that the user made stays open.
    """

    name: str

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int | None) -> None:
        """Write values of one step."""

    def close(self) -> None:
        """Write what is still kept back, and end what was begun here."""


class TrackerFeed:
    """Hands values to trackers from a thread for each, so that training never waits for one of them.

    >>> feed = TrackerFeed([TensorBoardTracker("runs/grpo")])  # doctest: +SKIP
    >>> feed.log(hardware.flush(), step=7)  # doctest: +SKIP

    Args:
        trackers: Each gets all values.
        max_queued: The most steps that wait for one tracker; beyond it the oldest is dropped and counted.
    """

    def __init__(self, trackers: Iterable[Tracker], *, max_queued: int = 1_000) -> None:
        self._lanes = [_Lane(tracker, max_queued) for tracker in trackers]

    def log(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Queue values for every tracker; returns at once and never raises."""
        if not values:
            return
        kept = dict(values)
        for lane in self._lanes:
            lane.put(kept, step)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until everything queued so far is written; True if that happened in time."""
        deadline = time.monotonic() + timeout_s
        return all(lane.wait_idle(max(0.0, deadline - time.monotonic())) for lane in self._lanes)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is queued, within a bounded time, and stop; idempotent."""
        deadline = time.monotonic() + timeout_s
        for lane in self._lanes:
            lane.stop()
        for lane in self._lanes:
            lane.join(max(0.0, deadline - time.monotonic()))

    def get_status(self) -> dict[str, dict[str, Any]]:
        """Tell for each tracker what was written, dropped, what failed and what waits."""
        return {lane.tracker.name: lane.status() for lane in self._lanes}


class _Lane:
    """One tracker with its queue and its thread."""

    def __init__(self, tracker: Tracker, max_queued: int) -> None:
        self.tracker = tracker
        self._queue: deque[tuple[Mapping[str, float], int | None]] = deque()
        self._max_queued = max_queued
        self._changed = threading.Condition()
        self._busy = False
        self._stopping = False
        self._written = self._dropped = self._failed = 0
        self._last_error = ""
        self._thread = threading.Thread(target=self._run, name=f"rl-insight-{tracker.name}", daemon=True)
        self._thread.start()

    def put(self, values: Mapping[str, float], step: int | None) -> None:
        with self._changed:
            if self._stopping:
                self._dropped += 1
                return
            if len(self._queue) >= self._max_queued:
                self._queue.popleft()
                self._dropped += 1
            self._queue.append((values, step))
            self._changed.notify_all()

    def wait_idle(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._busy, timeout=timeout_s)

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
        with self._changed:  # what a slow tracker did not take in time is lost
            self._dropped += len(self._queue)
            self._queue.clear()

    def status(self) -> dict[str, Any]:
        with self._changed:
            return {
                "queued": len(self._queue),
                "written": self._written,
                "dropped": self._dropped,
                "failed": self._failed,
                "last_error": self._last_error,
            }

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                if not self._queue:
                    break
                values, step = self._queue.popleft()
                self._busy = True
            problem = self._try(partial(self.tracker.log, values, step))
            with self._changed:
                self._busy = False
                self._written += problem is None
                self._failed += problem is not None
                self._changed.notify_all()
        self._try(self.tracker.close)

    def _try(self, action: Callable[[], None]) -> Exception | None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # a tracker may raise anything; training goes on
            if repr(error) != self._last_error:
                self._last_error = repr(error)
                logger.warning(
                    "tracker %s failed: %r. Its values are lost, training goes on.", self.tracker.name, error
                )
            return error
        return None
