"""Which processes are asked for their stacks: with the answer to their next batch, at most once a minute each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
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
        self._asked_neighbors: dict[str, float] = {}
        """Apart from those that were asked themselves: one that could not answer has just become silent."""
        self._of_hosts: dict[str, dict[str, float]] = {}
        """By host, the silent processes that any other one of that host is asked about."""

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

    def ask_neighbors(self, silent: Mapping[str, str]) -> int:
        """Ask other processes of their hosts for the stacks of silent ones; returns how many are new."""
        if not self._enabled:
            return 0
        now = self._clock()
        with self._lock:
            self._asked_neighbors = {one: at for one, at in self._asked_neighbors.items() if now - at < AGAIN_S}
            new = {one: host for one, host in silent.items() if one not in self._asked_neighbors}
            for process_id, host in new.items():
                self._of_hosts.setdefault(host, {})[process_id] = now
            self._asked_neighbors |= dict.fromkeys(new, now)
        return len(new)

    def take(self, process_ids: Iterable[str], hosts: Iterable[str] = ()) -> list[str]:
        """Return the processes whose stacks are asked of those that have sent something, each once."""
        if not self._waiting and not self._of_hosts:  # nearly always, and every request comes through here
            return []
        now = self._clock()
        with self._lock:
            found = [one for one in process_ids if self._waiting.pop(one, None) is not None]
            for host in hosts:
                silent = self._of_hosts.pop(host, {})
                found += [one for one, since in silent.items() if now - since < _WAIT_S]
            return found
