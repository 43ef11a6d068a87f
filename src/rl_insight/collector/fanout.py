"""A thread and a bounded queue per sink, so that a slow or broken one does not delay the others."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from threading import Condition, Thread, current_thread
from time import monotonic
from typing import Any

import msgspec

from rl_insight.collector.base import Sink

logger = logging.getLogger(__name__)

_MAX_LOGGED_ERRORS = 100


class SinkStatus(msgspec.Struct):
    """Counts of the batches for one sink."""

    name: str
    queued: int = 0
    """Including the batch being written."""
    queued_bytes: int = 0
    written: int = 0
    failed: int = 0
    """Batches whose `write` raised."""
    dropped: int = 0
    """Batches evicted from a full queue, or left in it when closing timed out."""
    flush_failures: int = 0
    last_error: str | None = None
    details: dict[str, Any] = {}
    """The sink's own status."""


class SinkRunner:
    """Feeds one sink from a bounded queue on its daemon thread.

    `put` never blocks: if the queue is full, the oldest item, usually a batch, is dropped and counted. When a sink
    raises, the failure is counted, logged once per distinct error, and the sink continues with the next item. Items can
    be anything that the owner and its sink agree on.
    """

    def __init__(self, sink: Sink, *, max_batches: int = 20_000, max_bytes: int = 64 * 1024 * 1024) -> None:
        self.sink = sink
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._queue: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._writing = False
        self._unflushed = sink.flushes_at_start
        self._flush_wanted = False
        self._closing = False
        self._changed = Condition()
        self._status = SinkStatus(sink.name)
        self._logged: set[str] = set()
        self._thread = Thread(target=self._run, name=f"rl-insight-sink-{sink.name}", daemon=True)
        self._thread.start()

    def put(self, item: Any, size: int = 0) -> None:
        """Queue one item of about `size` bytes; after `close`, it is dropped and counted."""
        self.put_all([(item, size)])

    def put_all(self, items: Sequence[tuple[Any, int]]) -> None:
        """Queue items with their sizes; one call for all batches of a commit wakes the thread once."""
        with self._changed:
            if self._closing:
                self._status.dropped += len(items)
                return
            for item, size in items:
                while self._queue and (len(self._queue) >= self._max_batches or self._bytes + size > self._max_bytes):
                    self._drop_oldest()
                self._queue.append((item, size))
                self._bytes += size
            self._changed.notify_all()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until all queued items are written and flushed; False on a timeout."""
        with self._changed:
            self._flush_wanted = True
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: not (self._queue or self._writing or self._unflushed), timeout=timeout_s
            )

    def start_closing(self) -> None:
        """Stop accepting items and let the thread exit when the queue is empty; does not wait."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self, timeout_s: float = 5.0) -> None:
        """Drain the queue for at most `timeout_s`, drop the rest, close the sink; idempotent."""
        self.start_closing()
        if current_thread() is self._thread:
            return
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            return
        with self._changed:
            while self._queue:
                self._drop_oldest()
        logger.warning(
            "sink %r did not finish within %.1f s: the queued batches are dropped. Its status has the last error.",
            self.sink.name,
            timeout_s,
        )

    def get_status(self) -> SinkStatus:
        """Return the counts, and the sink's own status."""
        details = self._details()
        with self._changed:
            queued = len(self._queue) + self._writing
            return msgspec.structs.replace(self._status, queued=queued, queued_bytes=self._bytes, details=details)

    def _details(self) -> dict[str, Any]:
        # Without our lock: a slow sink must not block `put`.
        try:
            return self.sink.get_status()
        except Exception as error:  # noqa: BLE001 -- a sink may raise anything
            return {"error": f"{type(error).__name__}: {error}"}

    def _drop_oldest(self) -> None:
        _, size = self._queue.popleft()
        self._bytes -= size
        self._status.dropped += 1

    def _run(self) -> None:
        flushed_at = -inf if self._unflushed else monotonic()
        while True:
            item = self._next(flushed_at + self.sink.flush_interval_s)
            if item is not None:
                self._write(item)
            if self._is_to_flush() and (item is None or monotonic() >= flushed_at + self.sink.flush_interval_s):
                self._flush()
                flushed_at = monotonic()
            if item is None and self._finished():
                break
        self._succeeds(self.sink.close)

    def _next(self, flush_at: float) -> Any:
        """Wait for an item; None if it is time to flush or stop."""
        with self._changed:
            while not self._queue and not self._closing:
                if not self._is_to_flush():
                    self._changed.wait()
                    continue
                wait_s = flush_at - monotonic()
                if self._flush_wanted or wait_s <= 0.0:
                    return None
                self._changed.wait(wait_s)
            if not self._queue:
                return None
            item, size = self._queue.popleft()
            self._bytes -= size
            self._writing = True
            return item

    def _is_to_flush(self) -> bool:
        return self._unflushed or (self.sink.flushes_when_idle and not self._closing)

    def _finished(self) -> bool:
        with self._changed:
            return self._closing and not self._queue

    def _write(self, item: Any) -> None:
        written = self._succeeds(self.sink.write, item)
        with self._changed:
            self._status.written += written
            self._status.failed += not written
            self._writing = False
            self._unflushed = True
            self._changed.notify_all()

    def _flush(self) -> None:
        flushed = self._succeeds(self.sink.flush)
        with self._changed:
            self._status.flush_failures += not flushed
            self._unflushed = self._flush_wanted = False
            self._changed.notify_all()

    def _succeeds(self, call: Callable[..., None], *arguments: Any) -> bool:
        """Call the sink; an error is noted, and logged the first time."""
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001 -- a sink may raise anything
            text = self._status.last_error = f"{type(error).__name__}: {error}"
            if text not in self._logged and len(self._logged) < _MAX_LOGGED_ERRORS:
                self._logged.add(text)
                logger.warning("sink %r failed: %s. It continues with the next batch.", self.sink.name, text)
            return False
        return True
