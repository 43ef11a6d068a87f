"""The interface of sinks, which receive accepted batches."""

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
    """The runs of a server."""

    def list_runs(self) -> Sequence[Any]:
        """Return all runs: each has a `run_id`, and a `problem` if it cannot be read."""

    def open(self, run_id: str) -> AbstractContextManager[Any]:
        """Open a run's store."""


class SinkContext(NamedTuple):
    """What a collector provides to a sink besides batches."""

    namespace: str
    """The prefix of every exposed metric name."""
    started_ns: int
    """When the collector started counting."""
    series: SeriesTable
    """The recorded metrics, merged over processes; batches are merged before sinks get them."""
    sources: Sequence[Sink]
    """The sinks that provide metrics."""
    runs: StoredRuns | None = None
    """The committed runs, if the collector belongs to a server."""

    def derived_families(self) -> list[Family]:
        """Return the metrics that sinks provide."""
        return [family for sink in self.sources for family in sink.families()]


class Sink(ABC):
    """Receives decoded batches from a collector, for a file, a store or another system.

    - Creating a sink MUST NOT connect, write or start anything: a server also creates sinks to validate its settings.
    - `write` is called by one thread, the sink's, never concurrently, in the order of arrival.
    - `write` MAY block and MAY raise: the batch is then counted as failed, and the sink continues with the next.
      Retries, if any, happen inside `write`.
    - Batches MUST NOT be modified: other sinks see the same objects.
    - A sink that buffers batches sends them in `flush`, which the same thread calls within `flush_interval_s` of a
      write, and before `close`; also without writes while `flushes_when_idle`. It MAY raise; the sink counts its drops.
    - `attach` is called once, before the first `write`, by a collector that has metrics to share.
    - A sink MAY provide metrics: it declares them in `declarations` and returns them from `families`.
    - `close` MUST be idempotent; nothing is written after it.
    - `get_status` MAY be called from any thread at any time.
    """

    name: str
    """Used in status and metrics; unique within a collector."""

    flush_interval_s: float = 1.0
    """The longest time between a write and a flush."""

    flushes_at_start: bool = False
    """Whether `flush` is also called before the first write, for data left by an earlier process."""

    @property
    def flushes_when_idle(self) -> bool:
        """Whether `flush` is also called every `flush_interval_s` without writes."""
        return False

    declarations: Sequence[Declaration] = ()
    """The metrics that the sink provides; recorded metrics cannot use their names."""

    def attach(self, context: SinkContext) -> None:
        """Accept the collector's context."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Process one batch."""

    def families(self) -> Iterable[Family]:
        """Return the declared metrics that have a series; called from any thread."""
        return ()

    def role_families(self) -> Iterable[Family]:
        """Return the same with one series per role instead of one per rank, host and GPU."""
        return by_role(self.families())

    def flush(self) -> None:
        """Send buffered data."""

    def drop_run(self, run_id: str) -> None:
        """Remove the metrics of a deleted run; called from any thread, for sinks that provide metrics."""

    def close(self) -> None:
        """Release resources."""

    def get_status(self) -> dict[str, Any]:
        """Return details for people and tests."""
        return {}
