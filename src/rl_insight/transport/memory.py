"""Transports that deliver nothing: one keeps the batches in memory for inspection, one discards them."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from rl_insight.schema import Batch, decode
from rl_insight.transport.base import Transport


class MemoryTransport(Transport):
    """Keeps the latest batches in memory, for tests and for inspecting what a program records.

    >>> transport = MemoryTransport(max_batches=2)
    >>> transport.send(b"first")
    >>> transport.payloads
    [b'first']
    """

    def __init__(self, max_batches: int = 10_000) -> None:
        if max_batches < 1:
            raise ValueError(f"max_batches is {max_batches}: a memory transport keeps at least one batch.")
        self._max_batches = max_batches
        self._payloads: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._accepted = 0
        self._closed = False

    @property
    def payloads(self) -> list[bytes]:
        """The kept batches, encoded, oldest first."""
        with self._lock:
            return list(self._payloads)

    @property
    def batches(self) -> list[Batch]:
        """The kept batches, decoded, oldest first."""
        return [decode(payload) for payload in self.payloads]

    def clear(self) -> None:
        """Discard the kept batches; they count as delivered."""
        with self._lock:
            self._payloads.clear()

    def send(self, payload: bytes) -> None:
        """Keep one batch, replacing the oldest if there are too many."""
        if self._closed:
            self.on_loss("batches", "closed", 1)
            return
        with self._lock:
            full = len(self._payloads) >= self._max_batches
            if full:
                self._payloads.popleft()
            self._payloads.append(payload)
            self._accepted += 1
        if full:
            self.on_loss("batches", "memory_full", 1)

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002 nothing to wait for
        """Return True: batches are already in their destination."""
        return True

    def close(self) -> None:
        """Accept no more batches; kept ones stay readable."""
        self._closed = True

    def abandon(self) -> None:
        """Discard everything. Acquires no lock: a thread that does not exist in the child may have held it."""
        self._closed = True
        self._payloads = deque()
        self._lock = threading.Lock()

    def get_status(self) -> dict[str, Any]:
        """Return how many batches were accepted and how many are kept."""
        payloads = self.payloads
        return {
            "backend": "memory",
            "delivered_batches": self._accepted,
            "kept_batches": len(payloads),
            "kept_bytes": sum(map(len, payloads)),
        }


class NullTransport(Transport):
    """Discards everything, for `server.backend: none`."""

    def send(self, payload: bytes) -> None:
        """Discard one batch."""

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002 nothing to wait for
        """Return True: there is nothing to deliver."""
        return True

    def close(self) -> None:
        """Do nothing."""

    def get_status(self) -> dict[str, Any]:
        """Return that this backend discards batches."""
        return {"backend": "none"}
