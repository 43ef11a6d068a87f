"""Turns at run files: one thread at a time opens, describes or closes a file, without delaying the use of others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

_AGAIN_S = 0.01
"""An interrupt has no effect between two statements: it is repeated this often."""


class Turn:
    """What the thread at a file is doing, as far as it can be interrupted."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._cursor: duckdb.DuckDBPyConnection | None = None

    @contextmanager
    def interruptible(self, cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """Let an urgent waiter interrupt the statements of a cursor: they raise `duckdb.InterruptException`."""
        with self._lock:
            self._cursor = cursor
        try:
            yield
        finally:
            with self._lock:  # a cursor must not be interrupted while it is being closed
                self._cursor = None

    def interrupt(self) -> None:
        """Interrupt the current statement, if any; needs the lock."""
        if self._cursor is not None:
            self._cursor.interrupt()


class FileTurns:
    """The turns at all files of a directory.

    A thread has one turn at most, and does not wait for one while it needs the lock to stay locked.

    Args:
        lock: the lock of the directory; it is not held during a turn.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._ended = threading.Condition(lock)
        self._turns: dict[str, Turn] = {}

    def is_free(self, name: str) -> bool:
        """Return whether no thread has its turn at a file; needs the lock."""
        return name not in self._turns

    @contextmanager
    def turn(self, name: str, *, is_urgent: bool = False) -> Iterator[Turn]:
        """Wait until a file is free, and keep other threads away from it; an urgent waiter interrupts their reading."""
        with self._lock:
            while (other := self._turns.get(name)) is not None:
                if is_urgent:
                    other.interrupt()
                self._ended.wait(_AGAIN_S if is_urgent else None)
            turn = self._turns[name] = Turn(self._lock)
        try:
            yield turn
        finally:
            with self._lock:
                del self._turns[name]
                self._ended.notify_all()

    def wait_for_all(self) -> None:
        """Wait until all current turns have ended, and interrupt those that can be; needs the lock."""
        for name, turn in list(self._turns.items()):
            while self._turns.get(name) is turn:
                turn.interrupt()
                self._ended.wait(_AGAIN_S)
