"""What committed batches are handed on to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from rl_insight.collector.series import SeriesTable
from rl_insight.metrics import Declaration, Family
from rl_insight.metrics.by_role import by_role
from rl_insight.schema import Batch


class StoredRuns(Protocol):
    """The runs that a server keeps."""

    def run_ids(self) -> list[str]:
        """Return the ids of all runs."""

    def open_run(self, run_id: str) -> AbstractContextManager[Any]:
        """Lend a run's store."""


class SinkContext(NamedTuple):
    """What a sink can use of its collector besides the batches."""

    namespace: str
    """The prefix of every exposed metric name."""
    started_ns: int
    """When the collector started to count."""
    series: SeriesTable
    """The recorded metrics, merged over processes; a batch is merged before a sink gets it."""
    sources: Sequence[Sink]
    """The sinks that yield metrics."""
    runs: StoredRuns | None = None
    """The committed runs, where the collector belongs to a server."""

    def derived_families(self) -> list[Family]:
        """Return the metrics that sinks yield."""
        return [family for sink in self.sources for family in sink.families()]


class Sink(ABC):
    """Takes decoded batches from a collector: a file, a store, another system.

    - Making a sink MUST NOT connect, write or begin anything: a server also makes sinks to check its settings.
    - `write` is called by one thread, the sink's, never concurrently, in the order of arrival.
    - `write` MAY block and MAY raise: the batch is then counted as failed, and the sink continues with the next.
      A sink that can retry does so itself, within `write`.
    - Batches MUST NOT be changed: other sinks see the same objects.
    - A sink that gathers several batches sends them in `flush`, which the same thread calls at the latest
      `flush_interval_s` after a write, and before `close`; without a write too while `flushes_when_idle`. It MAY raise;
      the sink counts what it then drops.
    - `attach` is called once, before the first `write`, by a collector that has metrics to share.
    - A sink MAY yield metrics: it declares them in `declarations` and returns them from `families`.
    - `close` MUST be idempotent; nothing is written after it.
    - `get_status` MAY be called from any thread at any time.
    """

    name: str
    """Shows in status and metrics; unique among the sinks of a collector."""

    flush_interval_s: float = 1.0
    """The longest time between a write and a flush."""

    flushes_at_start: bool = False
    """Whether `flush` is also called before the first write: there may be something left from an earlier process."""

    @property
    def flushes_when_idle(self) -> bool:
        """Whether `flush` is also called every `flush_interval_s` while nothing is written."""
        return False

    declarations: Sequence[Declaration] = ()
    """The metrics that the sink yields; recorded metrics cannot use their names."""

    def attach(self, context: SinkContext) -> None:
        """Take note of what the collector shares."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Take one batch."""

    def families(self) -> Iterable[Family]:
        """Return the metrics that were declared and have a series now; called from any thread."""
        return ()

    def role_families(self) -> Iterable[Family]:
        """Return the same with one series where there was one for each rank, host and GPU."""
        return by_role(self.families())

    def flush(self) -> None:
        """Send what `write` buffered."""

    def drop_run(self, run_id: str) -> None:
        """Remove the metrics of a deleted run; called from any thread, for sinks that yield metrics."""

    def close(self) -> None:
        """Release what the sink holds."""

    def get_status(self) -> dict[str, Any]:
        """Return what the sink knows about itself, for people and for tests."""
        return {}
