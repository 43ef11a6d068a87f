"""The contract of trackers, and threads that feed them so that training never waits."""

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
    - Steps may repeat and may go backward: a tracker MUST keep such values as well as its library can.
    - The library MUST NOT be imported before the tracker is created.
    - `close` MUST be idempotent, and end only what the tracker itself started: the user's run stays open.
    """

    name: str

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int | None) -> None:
        """Write the values of a step."""

    def close(self) -> None:
        """Write buffered values, and end what was started here."""


class RunTracker(Tracker):
    """Writes to an existing run, or to a new one, which it ends."""

    def __init__(self, run: Any, begin: Callable[[], Any]) -> None:
        self._is_ours = not run
        self._run = run or begin()

    def log(self, values: Mapping[str, float], step: int | None) -> None:
        """Write the values of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run if it was started here."""
        run, self._run = self._run, None
        if run is not None and self._is_ours:
            run.finish()


class SinkFeed:
    """Feeds sinks from bounded queues, with one thread per sink."""

    def __init__(self, sinks: Iterable[Sink], **limits: int) -> None:
        self._runners = [SinkRunner(sink, **limits) for sink in sinks]

    def put(self, item: Any) -> None:
        """Queue an item for every sink; never blocks."""
        for runner in self._runners:
            runner.put(item)

    def start_closing(self) -> None:
        """Accept no more items, and let each thread end once its queue is empty; does not wait."""
        for runner in self._runners:
            runner.start_closing()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until everything queued so far is written; False on timeout."""
        deadline = time.monotonic() + timeout_s
        return all(runner.wait_idle(max(0.0, deadline - time.monotonic())) for runner in self._runners)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write queued items, within a bounded time, and stop; idempotent."""
        deadline = time.monotonic() + timeout_s
        self.start_closing()
        for runner in self._runners:
            runner.close(max(0.0, deadline - time.monotonic()))

    def get_status(self) -> dict[str, dict[str, Any]]:
        """Return for each sink how many items were written, dropped and failed, and how many are queued."""
        return {runner.sink.name: msgspec.to_builtins(runner.get_status()) for runner in self._runners}


class TrackerFeed(SinkFeed):
    """Passes values to trackers, each from its own thread, so that training never waits for one of them.

    >>> feed = TrackerFeed([TensorBoardTracker("runs/grpo")])  # doctest: +SKIP
    >>> feed.log(hardware.flush(), step=7)  # doctest: +SKIP

    Args:
        trackers: Each gets all values.
        max_queued: The most steps to queue per tracker; beyond it the oldest is dropped and counted.
    """

    def __init__(self, trackers: Iterable[Tracker], *, max_queued: int = 1_000) -> None:
        super().__init__(map(_LoggingSink, trackers), max_batches=max_queued)

    def log(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Queue values for every tracker; return at once and never raise."""
        if values:
            self.put((dict(values), step))


class _LoggingSink(Sink):
    """Adapts a tracker to `SinkRunner`; items are values with their step."""

    def __init__(self, tracker: Tracker) -> None:
        self.name = tracker.name
        self._tracker = tracker

    def write(self, batch: Any) -> None:
        self._tracker.log(*batch)

    def close(self) -> None:
        self._tracker.close()
