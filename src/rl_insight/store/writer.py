"""The writer thread: groups batches into commits, acknowledges them, and then publishes them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from rl_insight.errors import InsightError, SchemaError
from rl_insight.intake import Intake
from rl_insight.schema import Batch
from rl_insight.store.errors import (
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreOverloadedError,
)
from rl_insight.store.runs import RunDirectory
from rl_insight.words import size_text

logger = logging.getLogger(__name__)


_MANY_BATCHES = 16
_SETTLE_S = 1.0
"""How long the last-seen times of a busy run may be stale for readers."""
_LINGER_COMMITS = 4
"""After a commit of many batches, the next one waits this many times as long as the commit took."""
_LINGER_LOOKS = 4
"""How often to check whether batches still arrive; on a busy machine there are gaps between them."""


class Committed(NamedTuple):
    """A batch after its commit."""

    batch: Batch
    size: int
    new: bool
    """False for a duplicate."""
    intake: Intake
    """The intake of its process as of this commit."""


CommitHook = Callable[[str, Sequence[Committed]], None]
"""Called as ``on_commit(run_id, batches)`` on the writer's thread after each commit; it must not block."""


class WriterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of the writer."""

    pending_batches: int
    pending_bytes: int
    max_pending_bytes: int
    lag_s: float
    """How long the oldest uncommitted batch has waited."""
    last_commit_s: float
    longest_commit_s: float
    commits: int
    committed_batches: int
    duplicate_batches: int
    failed_batches: int
    refused_batches: int
    """Refused because the queue was full."""
    last_error: str = ""


Settled = bool | Exception
"""The outcome of a batch: whether it was new, or why it was not written."""


class _Request:
    """Batches that are submitted and acknowledged together."""

    __slots__ = ("_left", "future", "is_running", "results")

    def __init__(self, count: int) -> None:
        self.future: Future[list[Settled]] = Future()
        self.is_running: bool | None = None
        self.results: list[Settled] = [False] * count
        self._left = count

    def start(self) -> bool:
        """Return whether the sender is still waiting."""
        if self.is_running is None:  # the future may be asked only once
            self.is_running = self.future.set_running_or_notify_cancel()
        return self.is_running

    def settle(self, place: int, result: Settled) -> None:
        """Record the outcome of one batch; after the last one, acknowledge the request."""
        self.results[place] = result
        self._left -= 1
        if not self._left:
            self.future.set_result(self.results)


@dataclass(slots=True)
class _QueuedBatch:
    batch: Batch
    size: int
    received_ns: int
    since_s: float
    request: _Request
    place: int

    def settle(self, result: Settled) -> None:
        self.request.settle(self.place, result)


class StoreWriter:
    """Writes the batches of all runs, as many per commit as are queued.

    >>> writer = StoreWriter(directory)  # doctest: +SKIP
    >>> writer.submit_all([(batch, len(payload))]).result()  # doctest: +SKIP
    [True]

    Args:
        directory: where the runs are.
        max_pending_bytes: the size limit of the queue; beyond it, batches are refused.
        on_commit: publishes the batches of a commit, after they were acknowledged.
        linger_s: how long to wait for more batches before committing.
        max_linger_s: the same while many batches arrive, so that more of them share the fixed cost of a commit.
        max_commit_bytes: the approximate size limit of a commit, which bounds memory and latency.
    """

    def __init__(
        self,
        directory: RunDirectory,
        *,
        max_pending_bytes: int = 128 * 1024 * 1024,
        on_commit: CommitHook = lambda _run_id, _batches: None,
        linger_s: float = 0.02,
        max_linger_s: float = 0.25,
        max_commit_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        self._directory = directory
        self._max_pending_bytes = max_pending_bytes
        self._linger_s = self._shortest_linger_s = linger_s
        self._max_linger_s = max_linger_s
        self._max_commit_bytes = max_commit_bytes
        self._queue: deque[_QueuedBatch] = deque()
        self._committing: list[_QueuedBatch] = []
        self._behind_since_s: dict[str, float] = {}
        """When each unsettled run became so, see `RunStore.commit`; used only by the writer thread."""
        self._pending_bytes = 0
        self._arrived = threading.Condition()
        self._closing = False
        self._on_commit = on_commit
        self._last_commit_s = self._longest_commit_s = 0.0
        self._commits = self._committed = self._duplicates = self._failed = self._refused = 0
        self._last_error = ""
        self._thread = threading.Thread(target=self._run, name="rl-insight-store-writer", daemon=True)
        self._thread.start()

    def submit_all(
        self, batches: Sequence[tuple[Batch, int]], on_refused: Callable[[], None] = lambda: None
    ) -> Future[list[Settled]]:
        """Queue batches, each with its size; after the commits, the future's result is the outcome of each.

        Batches that do not fit are refused at once with a `StoreOverloadedError`, and `on_refused` is called for each;
        the others stay queued.

        Raises:
            StoreError: the writer is closed.
        """
        request = _Request(len(batches))
        if not batches:
            request.future.set_result([])
            return request.future
        received_ns, since_s = time.time_ns(), time.monotonic()
        refused: list[tuple[int, StoreOverloadedError]] = []
        with self._arrived:
            if self._closing:
                raise StoreError("the store is closing and accepts no more batches.")
            was_empty = not self._queue
            for place, (batch, size) in enumerate(batches):
                # A batch larger than the limit is accepted when the queue is empty: otherwise it would be refused
                # forever.
                if self._pending_bytes and self._pending_bytes + size > self._max_pending_bytes:
                    refused.append((place, self._overload()))
                    continue
                self._queue.append(_QueuedBatch(batch, size, received_ns, since_s, request, place))
                self._pending_bytes += size
            self._refused += len(refused)
            # Before the writer can take the others: from then on, only the writer settles the request.
            for place, error in refused:
                on_refused()
                request.settle(place, error)
            # Not for every request: a lingering writer polls the queue anyway, and a wake-up takes 50 us.
            if was_empty or self._pending_bytes >= self._max_commit_bytes:
                self._arrived.notify()
        return request.future

    def _overload(self) -> StoreOverloadedError:
        return StoreOverloadedError(
            f"{size_text(self._pending_bytes)} are waiting to be written. Retry later.",
            retry_after_s=self._retry_after_s(),
        )

    def _retry_after_s(self) -> float:
        commits_ahead = self._pending_bytes / self._max_commit_bytes
        return min(30.0, max(0.5, commits_ahead * self._last_commit_s / 2))

    def get_status(self) -> WriterStatus:
        """Return the writer's status."""
        with self._arrived:
            oldest = self._committing[0] if self._committing else self._queue[0] if self._queue else None
            return WriterStatus(
                pending_batches=len(self._queue) + len(self._committing),
                pending_bytes=self._pending_bytes,
                max_pending_bytes=self._max_pending_bytes,
                lag_s=time.monotonic() - oldest.since_s if oldest else 0.0,
                last_commit_s=self._last_commit_s,
                longest_commit_s=self._longest_commit_s,
                commits=self._commits,
                committed_batches=self._committed,
                duplicate_batches=self._duplicates,
                failed_batches=self._failed,
                refused_batches=self._refused,
                last_error=self._last_error,
            )

    def close(self, timeout_s: float = 10.0) -> bool:
        """Drain the queue, then stop; return whether everything was written in time. Idempotent."""
        with self._arrived:
            self._closing = True
            self._arrived.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._gather():
            by_run: dict[str, list[_QueuedBatch]] = {}
            for waiting in self._committing:
                by_run.setdefault(waiting.batch.process.run_id, []).append(waiting)
            for run_id, group in by_run.items():
                self._commit(run_id, group)
            with self._arrived:
                self._pending_bytes -= sum(waiting.size for waiting in self._committing)
                self._committing = []
            self._settle_runs()

    def _gather(self) -> bool:
        """Dequeue batches to commit, or none if a run has to be settled; return False when the writer is closing."""
        with self._arrived:
            while not self._queue:
                if self._closing:
                    return False
                if not self._arrived.wait(_SETTLE_S if self._behind_since_s else None):
                    return True
            self._linger(self._queue[0].since_s)
            size = 0
            while self._queue and (not self._committing or size + self._queue[0].size <= self._max_commit_bytes):
                waiting = self._queue.popleft()
                if not waiting.request.start():
                    self._pending_bytes -= waiting.size  # its sender is gone and never got an acknowledgment
                    continue
                size += waiting.size
                self._committing.append(waiting)
            return True

    def _linger(self, since_s: float) -> None:
        """Wait for more batches; beyond the shortest time, only while they keep arriving."""
        waiting = 0
        until = since_s + self._shortest_linger_s
        while not self._closing and self._pending_bytes < self._max_commit_bytes:
            left = until - time.monotonic()
            if left > 0:
                self._arrived.wait(left)
                continue
            if len(self._queue) == waiting or time.monotonic() >= since_s + self._linger_s:
                return
            waiting = len(self._queue)
            step_s = max(self._shortest_linger_s, self._linger_s / _LINGER_LOOKS)
            until = min(time.monotonic() + step_s, since_s + self._linger_s)

    def _commit(self, run_id: str, group: list[_QueuedBatch], *, is_second: bool = False) -> None:
        began = time.monotonic()
        try:
            committed = self._write(run_id, group)
        except (StoreFullError, StoreBusyError) as error:
            self._fail(group, error)
            return
        except Exception as error:  # noqa: BLE001  (the writer's thread must outlive any one batch)
            if len(group) > 1:
                # One bad batch must not fail the others: bisecting finds it with the fewest commits.
                middle = len(group) // 2
                self._commit(run_id, group[:middle])
                self._commit(run_id, group[middle:])
            elif not self._is_to_blame(run_id, error):
                self._fail(group, error)
            elif is_second:
                self._fail(group, _refusal(error))
            else:
                # Only a batch that fails twice on its own is refused permanently.
                self._commit(run_id, group, is_second=True)
            return
        took = time.monotonic() - began
        with self._arrived:
            self._linger_s = self._next_linger_s(len(group), took)
            self._commits += 1
            self._last_commit_s = took
            self._longest_commit_s = max(self._longest_commit_s, took)
            new = sum(one.new for one in committed)
            self._committed += new
            self._duplicates += len(committed) - new
        for waiting, one in zip(group, committed, strict=True):
            waiting.settle(one.new)
        try:
            self._on_commit(run_id, committed)
        except Exception:
            logger.exception("could not publish %d committed batches of run %s", len(committed), run_id)

    def _next_linger_s(self, batches: int, took_s: float) -> float:
        if batches < _MANY_BATCHES:
            return self._shortest_linger_s
        return min(max(_LINGER_COMMITS * took_s, self._shortest_linger_s), self._max_linger_s)

    def _write(self, run_id: str, group: list[_QueuedBatch]) -> list[Committed]:
        try:
            return self._write_once(run_id, group)
        except StoreCorruptError:
            # The damaged file has been moved aside: continue with a new one.
            return self._write_once(run_id, group)

    def _write_once(self, run_id: str, group: list[_QueuedBatch]) -> list[Committed]:
        batches = [waiting.batch for waiting in group]
        with self._directory.open(run_id, create=True) as store:
            settle = len(group) < _MANY_BATCHES or self._is_due(run_id)
            results = store.commit(batches, received_ns=[waiting.received_ns for waiting in group], settle=settle)
            if store.is_settled:
                self._behind_since_s.pop(run_id, None)
            else:
                self._behind_since_s.setdefault(run_id, time.monotonic())
            return [
                Committed(waiting.batch, waiting.size, new, store.intake(waiting.batch.process.process_id))
                for waiting, new in zip(group, results, strict=True)
            ]

    def _is_due(self, run_id: str) -> bool:
        return time.monotonic() - self._behind_since_s.get(run_id, time.monotonic()) >= _SETTLE_S

    def _settle_runs(self) -> None:
        """Settle the runs that are due; if that fails, the next commit does it."""
        for run_id in [run_id for run_id in self._behind_since_s if self._is_due(run_id)]:
            del self._behind_since_s[run_id]
            try:
                with self._directory.open(run_id) as store:
                    store.commit([])
            except Exception as error:  # noqa: BLE001  (the run may be deleted or the disk full: nothing is lost)
                logger.debug("could not settle run %s: %s", run_id, error)

    def _is_to_blame(self, run_id: str, error: Exception) -> bool:
        """Return whether the batch is the cause: the store still accepts a commit without it."""
        if isinstance(error, (InsightError, OSError, MemoryError)):
            return False
        try:
            with self._directory.open(run_id, create=True) as store:
                store.commit([])
        except Exception:  # noqa: BLE001  (the batch is not the cause)
            return False
        return True

    def _fail(self, group: list[_QueuedBatch], error: Exception) -> None:
        known = isinstance(error, InsightError)
        reported = error if known else StoreError(f"the batch could not be written: {error}.")
        cause = error.__cause__ if isinstance(error, SchemaError) else None if known else error
        with self._arrived:
            self._failed += len(group)
            repeated = self._last_error == str(reported)
            self._last_error = str(reported)
        if not repeated:
            logger.error("could not write %d batches: %s", len(group), reported, exc_info=cause)
        for waiting in group:
            waiting.settle(reported)


def _refusal(error: Exception) -> SchemaError:
    refusal = SchemaError(f"the batch cannot be stored: {error}. Use the same version of rl-insight on both ends.")
    refusal.__cause__ = error
    return refusal
