"""Requests for stacks: sent to a process with the response to its next batch, at most once per minute each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

AGAIN_S: Final = 60.0
_WAIT_S: Final = 120.0
"""A request to a process that does not send a batch is dropped after this."""
_SELF, _NEIGHBOR = "self", "neighbor"


class StackRequests:
    """The requests that are delivered with the next batch of a process or a host; thread-safe."""

    def __init__(self, *, enabled: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._enabled = enabled
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, str], dict[str, float]] = {}
        """By addressee (a process, or any process on a host): whose stacks are requested, and since when."""
        self._asked: dict[tuple[str, str], float] = {}
        """Requests to a process and to its neighbors are separate: one that could not answer may have become silent."""

    def ask(self, process_ids: Iterable[str]) -> int:
        """Ask processes for their stacks; return how many were not asked within the last minute."""
        return self._request(_SELF, {one: one for one in process_ids})

    def ask_neighbors(self, silent: Mapping[str, str]) -> int:
        """Ask other processes on their hosts for the stacks of silent processes; return how many are new."""
        return self._request(_NEIGHBOR, silent)

    def _request(self, kind: str, addressees: Mapping[str, str]) -> int:
        if not self._enabled:
            return 0
        now = self._clock()
        with self._lock:
            self._asked = {key: since for key, since in self._asked.items() if now - since < AGAIN_S}
            self._waiting = {key: of for key, of in self._waiting.items() if now - max(of.values()) < _WAIT_S}
            new = {one: whom for one, whom in addressees.items() if (kind, one) not in self._asked}
            for one, whom in new.items():
                self._waiting.setdefault((kind, whom), {})[one] = self._asked[kind, one] = now
        return len(new)

    def take(self, process_ids: Iterable[str], hosts: Iterable[str] = ()) -> list[str]:
        """Return, once, the processes whose stacks are requested from the senders of a request."""
        if not self._waiting:  # nearly always, and every request calls this
            return []
        now = self._clock()
        keys = [*((_SELF, one) for one in process_ids), *((_NEIGHBOR, host) for host in hosts)]
        with self._lock:
            found = [item for key in keys for item in self._waiting.pop(key, {}).items()]
        return [one for one, since in found if now - since < _WAIT_S]
