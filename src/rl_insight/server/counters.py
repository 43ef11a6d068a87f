"""Counters of the server and its memory budget; safe to use from any thread."""

from __future__ import annotations

import time
from collections import Counter
from threading import Lock

_CROWDED_S = 10.0


class ServerCounters:
    """Requests, bytes and refusals by route.

    >>> counters = ServerCounters()
    >>> counters.request("native", 120)
    >>> counters.refuse("native", "schema")
    >>> counters.refused()
    {('native', 'schema'): 1}
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._refused: Counter[tuple[str, str]] = Counter()

    def request(self, route: str, size: int) -> None:
        """Count a request of `size` bytes."""
        with self._lock:
            self._requests[route] += 1
            self._bytes[route] += size

    def refuse(self, route: str, reason: str, count: int = 1) -> None:
        """Count refused requests, batches or rows."""
        with self._lock:
            self._refused[route, reason] += count

    def requests(self) -> dict[str, int]:
        """Return the requests so far, by route."""
        with self._lock:
            return dict(self._requests)

    def received_bytes(self) -> dict[str, int]:
        """Return the bytes received so far, by route."""
        with self._lock:
            return dict(self._bytes)

    def refused(self) -> dict[tuple[str, str], int]:
        """Return the refusals so far, by route and reason."""
        with self._lock:
            return dict(self._refused)


class ByteBudget:
    """Limits the bytes that all requests in flight hold together, including bodies that are still being received."""

    def __init__(self, limit: int) -> None:
        self._lock = Lock()
        self._limit = limit
        self._used = 0
        self._crowded_until_s = 0.0

    @property
    def is_crowded(self) -> bool:
        """Whether a request was refused recently for lack of room: slow bodies must then make room."""
        return time.monotonic() < self._crowded_until_s

    @property
    def used(self) -> int:
        """The bytes in flight now."""
        return self._used

    def reserve(self) -> Reservation:
        """Return the share of one request, empty at first; it must be released."""
        return Reservation(self)

    def _move(self, held: int, change: int) -> bool:
        with self._lock:
            # A request that is alone always fits: otherwise a large one could never be served.
            if change > 0 and self._used > held and self._used + change > self._limit:
                self._crowded_until_s = time.monotonic() + _CROWDED_S
                return False
            self._used += change
            return True


class Reservation:
    """One request's share of a `ByteBudget`; used by one thread at a time.

    >>> budget = ByteBudget(100)
    >>> with budget.reserve() as first, budget.reserve() as second:
    ...     first.grow(80), second.grow(30), second.grow(20)
    (True, False, True)
    >>> budget.used
    0
    """

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held = 0

    def grow(self, size: int) -> bool:
        """Reserve more; return False if there is no room."""
        if not self._budget._move(self._held, size):
            return False
        self._held += size
        return True

    def shrink(self, size: int) -> None:
        """Free a part."""
        self._held -= size
        self._budget._move(0, -size)

    def release(self) -> None:
        """Free everything; idempotent."""
        if self._held:
            self.shrink(self._held)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
