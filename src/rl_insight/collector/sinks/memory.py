"""Keeps recent batches in memory, for tests and debugging."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from rl_insight.collector.base import Sink
from rl_insight.schema import Batch, Record, records


class MemorySink(Sink):
    """The last `max_batches` batches, oldest first.

    >>> sink = MemorySink(max_batches=10)
    >>> list(sink.records())
    []
    """

    def __init__(self, *, max_batches: int = 1_000, name: str = "memory") -> None:
        self.name = name
        self._batches: deque[Batch] = deque(maxlen=max_batches)

    def write(self, batch: Batch) -> None:
        """Keep one batch."""
        self._batches.append(batch)

    @property
    def batches(self) -> list[Batch]:
        """The batches kept, oldest first."""
        return list(self._batches)

    def records(self) -> Iterator[Record]:
        """Yield the records of all kept batches."""
        for batch in self.batches:
            yield from records(batch)

    def get_status(self) -> dict[str, Any]:
        """Return how many batches are kept."""
        return {"batches": len(self._batches)}
