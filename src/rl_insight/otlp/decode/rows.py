"""Converts one resource of a request to rows of one process."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from rl_insight.metrics.totals import TotalsTable
from rl_insight.schema import Batch, BatchBuilder, Process


class DecodedRows(ABC):
    """Converts one signal of one process, and counts rejected items."""

    def __init__(self, process: Process, totals: TotalsTable) -> None:
        self.process = process
        self.totals = totals
        self.builder = BatchBuilder()
        self.rejected = 0
        self.problem = ""

    def add_resource(self, entry: Any) -> None:
        """Add a `ResourceSpans`, `ResourceMetrics` or `ResourceLogs`, whose second field is the list of scopes."""
        for scope in getattr(entry, entry.DESCRIPTOR.fields_by_number[2].name):
            self.add_scope(scope)

    @abstractmethod
    def add_scope(self, scope: Any) -> None:
        """Add all items of one instrumentation scope."""

    def build(self, sequence: int) -> Batch:
        """Return the rows as a batch and release them, which halves the memory in use while the batch is written."""
        builder, self.builder = self.builder, BatchBuilder()
        return builder.build(self.process, sequence=sequence, sent_ns=time.time_ns())

    def reject(self, problem: str) -> None:
        """Count an item that can never be accepted."""
        self.rejected += 1
        self.problem = problem

    def undo(self) -> None:
        """Undo side effects outside the builder: the rows could not be stored and will be sent again."""
