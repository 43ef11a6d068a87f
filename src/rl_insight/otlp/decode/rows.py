"""From one resource of a request to rows of one process."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from rl_insight.metrics.totals import TotalsTable
from rl_insight.schema import Batch, BatchBuilder, Process

LAST_NS = 2**62
"""Later times are cut to this one, which any column can hold."""


class DecodedRows(ABC):
    """Writes one signal of one process into a builder, and counts what cannot be taken."""

    def __init__(self, process: Process, totals: TotalsTable) -> None:
        self.process = process
        self.totals = totals
        self.builder = BatchBuilder()
        self.rejected = 0
        self.problem = ""

    def add_resource(self, entry: Any) -> None:
        """Add everything of a `ResourceSpans`, `ResourceMetrics` or `ResourceLogs`, whose second field are scopes."""
        for scope in getattr(entry, entry.DESCRIPTOR.fields_by_number[2].name):
            self.add_scope(scope)

    @abstractmethod
    def add_scope(self, scope: Any) -> None:
        """Add everything of one instrumentation scope."""

    def build(self, sequence: int) -> Batch:
        """Return the rows as a batch, and let go of them: while it is written they would take as much memory again."""
        builder, self.builder = self.builder, BatchBuilder()
        return builder.build(self.process, sequence=sequence, sent_ns=time.time_ns())

    def reject(self, problem: str) -> None:
        """Note something that will never be taken."""
        self.rejected += 1
        self.problem = problem

    def undo(self) -> None:
        """Forget what the rows changed outside of the builder: they could not be stored and will be sent again."""
