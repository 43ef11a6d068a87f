"""Publishes batches: merges their metrics, counts them by process, and forwards them to sinks."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from rl_insight.collector.base import Sink, SinkContext, StoredRuns
from rl_insight.collector.fanout import SinkRunner
from rl_insight.collector.health import EVENT_KINDS, HEALTH, CollectorStatus, ProcessStatus
from rl_insight.collector.run_activity import FORGET_AFTER_S
from rl_insight.collector.series import SeriesTable
from rl_insight.errors import SchemaError, UnsupportedVersionError
from rl_insight.intake import Admission, Intake
from rl_insight.metrics import Family, reserved_names
from rl_insight.metrics.by_role import by_role as merged_by_role
from rl_insight.metrics.prometheus import render
from rl_insight.schema import Batch, Loss, Process, decode
from rl_insight.schema.bundle import decode_bundle, is_bundle
from rl_insight.schema.names import DEFAULT_NAMESPACE


class Receipt(msgspec.Struct, frozen=True):
    """The result of ingesting a payload."""

    accepted: int = 0
    """Batches that were new."""
    duplicates: int = 0
    """Batches received before; the sender can delete them too."""


class Published(NamedTuple):
    """A batch that a receiver with a store has committed."""

    batch: Batch
    size: int
    intake: Intake
    """The state of its process."""
    is_new: bool
    """False for a duplicate."""


class Collector:
    """Publishes each batch of each process once: merges its metrics, and forwards it to every sink.

    - `ingest` accepts encoded batches in any order, including duplicates, with ledgers in memory. The Ray hub uses it.
    - A receiver with a store commits first and then calls `publish` with each process's `Intake`, which it owns.
    - All methods are thread-safe. No sink, however slow or broken, blocks them or makes them fail.
    - An invalid payload raises `SchemaError` and changes nothing.

    Args:
        sinks: each gets a thread and a bounded queue.
        namespace: the prefix of every exposed metric name.
        reserved: exposed names, besides the collector's, that recorded metrics cannot use.
        clock: the wall clock in nanoseconds.
        max_processes: processes tracked, twice the design limit of a server; beyond that, ended ones are evicted first,
            then the longest silent. An evicted process that reports again counts as new.
        forget_after_s: after this silence, the state for merging a process's metrics is freed.
        runs: the committed runs, for sinks that read them.
    """

    def __init__(
        self,
        sinks: Iterable[Sink] = (),
        *,
        namespace: str = DEFAULT_NAMESPACE,
        reserved: Iterable[str] = (),
        clock: Callable[[], int] = time.time_ns,
        max_processes: int = 20_000,
        forget_after_s: float = FORGET_AFTER_S,
        runs: StoredRuns | None = None,
    ) -> None:
        sinks = list(sinks)
        names = Counter(sink.name for sink in sinks)
        if repeated := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"two sinks are named {repeated[0]!r}: give each a unique name.")
        self.namespace = namespace
        self._sources = [sink for sink in sinks if sink.declarations]
        declared = [*HEALTH.declarations, *(one for sink in self._sources for one in sink.declarations)]
        self.series = SeriesTable(reserved=reserved_names(declared).union(reserved), forget_after_s=forget_after_s)
        self._admission = Admission()
        self._clock = clock
        self._max_processes = max_processes
        self._lock = Lock()
        self._processes: OrderedDict[str, _PublishedProcess] = OrderedDict()
        """The most recently seen is last."""
        self._totals = _Totals()
        self._started_ns = clock()
        self._closed = False
        context = SinkContext(namespace, self._started_ns, self.series, self._sources, runs)
        for sink in sinks:
            sink.attach(context)
        self._runners = [SinkRunner(sink) for sink in sinks]

    def ingest(self, payload: bytes) -> Receipt:
        """Ingest one encoded batch.

        Raises:
            SchemaError: it is not a batch that this version can read.
        """
        batch = self.decode(payload)
        now_ns = self._clock()
        with self._lock:
            known = self._processes.get(batch.process.process_id)
            intake = Intake(batch.process, now_ns) if known is None else known.intake
            is_new = intake.take(batch, now_ns)
            self._see(intake)
        self.publish([Published(batch, len(payload), intake, is_new)])
        return Receipt(accepted=int(is_new), duplicates=int(not is_new))

    def decode(self, payload: bytes) -> Batch:
        """Decode and validate a payload; a refused one is counted and changes nothing else.

        Raises:
            SchemaError: it is not a batch that this version can read.
        """
        with self._counting_refusals():
            return self.admit(decode(payload))

    def decode_all(self, payload: bytes) -> list[Batch]:
        """Decode and validate a payload that may be a bundle of batches.

        Raises:
            SchemaError: it, or a batch in the bundle, cannot be read by this version.
        """
        if not is_bundle(payload):
            return [self.decode(payload)]
        with self._counting_refusals():
            return self._admission.admit_bundle(decode_bundle(payload))

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        try:
            yield
        except SchemaError as error:
            reason = "version" if isinstance(error, UnsupportedVersionError) else "schema"
            with self._lock:
                self._totals.refused[reason] += 1
            raise

    def admit(self, batch: Batch) -> Batch:
        """Return a batch without rows that cannot be stored; raise `SchemaError` if none of it can be stored."""
        return self._admission.admit(batch)

    def publish(self, taken: Iterable[Published]) -> None:
        """Merge the metrics of accepted batches and queue them for the sinks; never blocks. Duplicates are counted."""
        fresh: list[tuple[Batch, int]] = []
        finished: list[str] = []
        with self._lock:
            for batch, size, intake, is_new in taken:
                if is_new:
                    finished += self._note(batch, size, intake)
                    fresh.append((batch, size))
                else:
                    self._totals.duplicates += 1
                    self._see(intake)
        self._forward(fresh, finished)

    def are_published(self, batches: Sequence[Batch]) -> list[bool]:
        """Return whether each batch and all before it have been published, and count those as duplicates.

        The same records may be imported into several runs: only batches of the same run count.
        """
        with self._lock:
            found = [
                (known := self._processes.get(batch.process.process_id)) is not None
                and known.run_id == batch.process.run_id
                and batch.sequence <= known.low_water
                for batch in batches
            ]
            self._totals.duplicates += sum(found)
            return found

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until every sink has written its queue; False on a timeout."""
        deadline = time.monotonic() + timeout_s
        return all(runner.wait_idle(max(deadline - time.monotonic(), 0.0)) for runner in self._runners)

    def status(self) -> CollectorStatus:
        """Return the counts of received, dropped and forwarded data."""
        sinks = {runner.sink.name: runner.get_status() for runner in self._runners}
        refused_samples = self.series.refused
        now_ns = self._clock()
        with self._lock:
            totals = deepcopy(self._totals)
            processes = list(self._processes.items())
        # Without the lock: 10,000 processes take 20 ms.
        return CollectorStatus(
            started_ns=self._started_ns,
            batches=totals.batches,
            bytes=totals.bytes,
            duplicates=totals.duplicates,
            refused=dict(totals.refused),
            events=dict(totals.events),
            losses=_losses(totals.losses),
            missing_batches=totals.missing,
            series=len(self.series),
            refused_samples=refused_samples,
            processes_seen=totals.processes,
            processes={name: process.status(now_ns) for name, process in processes},
            sinks=sinks,
        )

    def live_processes(self) -> int:
        """Return the number of live processes."""
        now_ns = self._clock()
        with self._lock:
            processes = list(self._processes.values())
        return sum(process.intake.liveness(now_ns) == "live" for process in processes)

    def families(self, *, by_role: bool = False) -> list[Family]:
        """Return the recorded metrics, the collector's health, and the metrics of sinks.

        With `by_role`, there is one series per role instead of one per rank, host and GPU.
        """
        recorded = sorted(self.series.families(by_role=by_role), key=lambda family: family.name)
        health = HEALTH.families(self.status())
        if by_role:
            health = merged_by_role(health)
        yielded = (sink.role_families() if by_role else sink.families() for sink in self._sources)
        return [*recorded, *health, *chain.from_iterable(yielded)]

    def metrics_page(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page for Prometheus, and its content type for an HTTP `Accept` header.

        >>> b"rl_insight_monitor_collector_batches_total 0" in Collector().metrics_page()[0]
        True
        """
        return render(self.families(), self.namespace, accept)

    def drop_run(self, run_id: str) -> None:
        """Remove the metrics of a deleted run; its batches count as new if they are sent again."""
        with self._lock:
            for process in self._processes.values():
                if process.run_id == run_id:
                    process.low_water = 0
        self.series.drop_run(run_id)
        for sink in self._sources:
            sink.drop_run(run_id)

    def get_status(self) -> dict[str, Any]:
        """Return `status()` as plain values for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self.status(), enc_hook=str)
        return plain

    def last_batches(self) -> list[tuple[Process, int]]:
        """Return the live processes without missing batches, with their last sequence number."""
        now_ns = self._clock()
        with self._lock:
            intakes = [process.intake for process in self._processes.values()]
        return [
            (intake.process, intake.ledger.low_water)
            for intake in intakes
            if intake.liveness(now_ns) == "live" and not intake.ledger.has_gaps
        ]

    def close(self, timeout_s: float = 5.0) -> None:
        """Drain the queues of the sinks for at most `timeout_s`, then stop; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        deadline = time.monotonic() + timeout_s
        for runner in self._runners:
            runner.start_closing()
        for runner in self._runners:
            runner.close(max(deadline - time.monotonic(), 0.0))

    def _forward(self, batches: list[tuple[Batch, int]], finished: list[str]) -> None:
        self.series.apply(*(batch for batch, _ in batches))
        for process_id in finished:
            self.series.forget(process_id)
        for runner in self._runners:
            runner.put_all(batches)

    def _note(self, batch: Batch, size: int, intake: Intake) -> list[str]:
        """Count a batch; return the processes whose metrics need no more merging."""
        process, totals = self._see(intake), self._totals
        process.batches += 1
        totals.batches += 1
        totals.bytes += size
        for kind in EVENT_KINDS:
            if count := len(getattr(batch, kind)):
                process.events[kind] += count
                totals.events[kind] += count
        for loss in batch.losses:  # a process reports totals
            key = (loss.kind, loss.reason)
            if loss.count > process.losses[key]:
                totals.losses[key] += loss.count - process.losses[key]
                process.losses[key] = loss.count
        finished = [batch.process.process_id] if intake.is_complete else []
        while len(self._processes) > self._max_processes:
            ended = (process_id for process_id, known in self._processes.items() if known.intake.final)
            finished.append(next(ended, None) or next(iter(self._processes)))
            del self._processes[finished[-1]]
        return finished

    def _see(self, intake: Intake) -> _PublishedProcess:
        process_id = intake.process.process_id
        process = self._processes.get(process_id)
        if process is None:
            process = self._processes[process_id] = _PublishedProcess(intake)
            self._totals.processes += 1
        self._processes.move_to_end(process_id)
        self._totals.missing += process.see(intake)
        return process


class _Totals(msgspec.Struct):
    """Counts over all processes."""

    batches: int = 0
    bytes: int = 0
    duplicates: int = 0
    processes: int = 0
    missing: int = 0
    refused: Counter[str] = msgspec.field(default_factory=Counter)
    events: Counter[str] = msgspec.field(default_factory=lambda: Counter(dict.fromkeys(EVENT_KINDS, 0)))
    losses: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)


class _PublishedProcess(msgspec.Struct):
    """The published state of one process."""

    intake: Intake
    low_water: int = 0
    """As of the last call: the ledger itself may be ahead by batches that a store has yet to commit."""
    abandoned: int = 0
    batches: int = 0
    events: Counter[str] = msgspec.field(default_factory=lambda: Counter(dict.fromkeys(EVENT_KINDS, 0)))
    losses: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)

    @property
    def run_id(self) -> str:
        """The run of its last batch."""
        return self.intake.process.run_id

    def see(self, intake: Intake) -> int:
        """Copy the state of the ledger; return how many more batches were abandoned."""
        # A store that reopens its file starts again from zero.
        more = intake.ledger.abandoned - (self.abandoned if intake is self.intake else 0)
        self.intake = intake
        self.low_water = intake.ledger.low_water
        self.abandoned = intake.ledger.abandoned
        return more

    def status(self, now_ns: int) -> ProcessStatus:
        intake = self.intake
        process = intake.process
        return ProcessStatus(
            process_id=process.process_id,
            run_id=process.run_id,
            project=process.project,
            experiment_name=process.experiment_name,
            host=process.host,
            pid=process.pid,
            role=process.role,
            rank=process.rank,
            last_seen_ns=intake.last_seen_ns,
            batches=self.batches,
            events=dict(self.events),
            losses=_losses(self.losses),
            clock_offset_ns=intake.clock.offset_ns,
            state=intake.liveness(now_ns),
        )


def _losses(counts: Counter[tuple[str, str]]) -> list[Loss]:
    return [Loss(kind, reason, count) for (kind, reason), count in sorted(counts.copy().items())]
