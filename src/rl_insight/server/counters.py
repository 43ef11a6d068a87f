"""What the server counts about itself, from any thread."""

from __future__ import annotations

from collections import Counter
from threading import Lock


class ServerCounters:
    """Requests, bytes and refusals by where they came in.

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
        """Count what was not taken."""
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
        """Return what was not taken so far, by route and reason."""
        with self._lock:
            return dict(self._refused)


class ByteBudget:
    """How many bytes of requests may be in work at one moment.

    One request always fits when nothing else is in work, so that a large one cannot wait for ever.
    """

    def __init__(self, limit: int) -> None:
        self._lock = Lock()
        self._limit = limit
        self._used = 0

    @property
    def used(self) -> int:
        """The bytes in work now."""
        return self._used

    def take(self, size: int) -> bool:
        """Reserve room; False when there is none."""
        with self._lock:
            if self._used and self._used + size > self._limit:
                return False
            self._used += size
            return True

    def give_back(self, size: int) -> None:
        """Free what was reserved."""
        with self._lock:
            self._used -= size
