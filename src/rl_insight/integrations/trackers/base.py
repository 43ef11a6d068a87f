"""What a tracker is to us, and how several of them are fed without making anyone wait."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from rl_insight.collector.base import Sink
from rl_insight.collector.fanout import SinkRunner


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


class RunTracker(Tracker):
    """Writes to a run that exists, or to a new one, which it ends."""

    def __init__(self, run: Any, begin: Callable[[], Any]) -> None:
        self._is_ours = not run
        self._run = run or begin()

    def log(self, values: Mapping[str, float], step: int | None) -> None:
        """Write values of one step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run if it was begun here."""
        run, self._run = self._run, None
        if run is not None and self._is_ours:
            run.finish()


class TrackerFeed:
    """Hands values to trackers from a thread for each, so that training never waits for one of them.

    >>> feed = TrackerFeed([TensorBoardTracker("runs/grpo")])  # doctest: +SKIP
    >>> feed.log(hardware.flush(), step=7)  # doctest: +SKIP

    Args:
        trackers: Each gets all values.
        max_queued: The most steps that wait for one tracker; beyond it the oldest is dropped and counted.
    """

    def __init__(self, trackers: Iterable[Tracker], *, max_queued: int = 1_000) -> None:
        self._runners = [SinkRunner(_LoggingSink(tracker), max_batches=max_queued) for tracker in trackers]

    def log(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Queue values for every tracker; returns at once and never raises."""
        if not values:
            return
        kept = dict(values)
        for runner in self._runners:
            runner.put((kept, step))

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until everything queued so far is written; True if that happened in time."""
        deadline = time.monotonic() + timeout_s
        return all(runner.wait_idle(max(0.0, deadline - time.monotonic())) for runner in self._runners)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is queued, within a bounded time, and stop; idempotent."""
        deadline = time.monotonic() + timeout_s
        for runner in self._runners:
            runner.start_closing()
        for runner in self._runners:
            runner.close(max(0.0, deadline - time.monotonic()))

    def get_status(self) -> dict[str, dict[str, Any]]:
        """Return for each tracker what was written, dropped and failed, and what waits."""
        return {runner.sink.name: msgspec.to_builtins(runner.get_status()) for runner in self._runners}


class _LoggingSink(Sink):
    """One tracker as what a `SinkRunner` feeds: its items are values and their step."""

    def __init__(self, tracker: Tracker) -> None:
        self.name = tracker.name
        self._tracker = tracker

    def write(self, batch: Any) -> None:
        self._tracker.log(*batch)

    def close(self) -> None:
        self._tracker.close()
