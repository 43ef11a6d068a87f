"""What queries remember about an open run file, so that they need not read it again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Final
from weakref import WeakKeyDictionary

import duckdb

_MOST_BYTES: Final = 8 * 1024 * 1024


class Memory:
    """Answers by key; the least recently used ones are forgotten. A query must check that an answer is still true.

    >>> memory = Memory(most_bytes=20)
    >>> for key in "abc":
    ...     memory.keep(key, key.upper(), size_bytes=10)
    >>> memory.get("a"), memory.get("c")
    (None, 'C')
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._answers: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """Return an answer; None if it is not known."""
        with self._lock:
            if key not in self._answers:
                return None
            self._answers.move_to_end(key)
            return self._answers[key][0]

    def keep(self, key: Hashable, answer: Any, *, size_bytes: int) -> None:
        """Remember an answer of about the given size."""
        with self._lock:
            self._bytes += size_bytes - self._answers.pop(key, (None, 0))[1]
            self._answers[key] = answer, size_bytes
            while self._bytes > self._most_bytes:
                self._bytes -= self._answers.popitem(last=False)[1][1]


_memories: WeakKeyDictionary[duckdb.DuckDBPyConnection, Memory] = WeakKeyDictionary()


def lend_memory(cursor: duckdb.DuckDBPyConnection, memory: Memory) -> None:
    """Let the queries on a cursor use the memory of its run file."""
    _memories[cursor] = memory


def memory_of(cursor: duckdb.DuckDBPyConnection) -> Memory:
    """Return the memory of the run file that a cursor reads; an empty one for other cursors."""
    return _memories.get(cursor) or Memory()
