"""Which processes are asked for their stacks: with the answer to their next batch, at most once a minute each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

AGAIN_S: Final = 60.0
_WAIT_S: Final = 120.0
"""A request to a process that sends nothing is forgotten after this."""


class StackRequests:
    """The requests that wait for the next batch of a process; safe to use from several threads."""

    def __init__(self, *, enabled: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._enabled = enabled
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, float] = {}
        self._asked: dict[str, float] = {}

    def ask(self, process_ids: Iterable[str]) -> int:
        """Ask processes for their stacks; returns how many of them were not asked within the last minute."""
        if not self._enabled:
            return 0
        now = self._clock()
        with self._lock:
            self._waiting = {one: since for one, since in self._waiting.items() if now - since < _WAIT_S}
            self._asked = {one: since for one, since in self._asked.items() if now - since < AGAIN_S}
            new = [one for one in process_ids if one not in self._asked]
            self._waiting |= dict.fromkeys(new, now)
            self._asked |= dict.fromkeys(new, now)
        return len(new)

    def take(self, process_ids: Iterable[str]) -> list[str]:
        """Return those of the processes that are to be asked now, each once."""
        if not self._waiting:  # nearly always, and every request comes through here
            return []
        with self._lock:
            return [one for one in process_ids if self._waiting.pop(one, None) is not None]
