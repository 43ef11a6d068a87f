"""Publishes batches: merges their metrics, counts them by process, and hands them to sinks."""

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
from rl_insight.collector.health import HEALTH
from rl_insight.collector.run_activity import FORGET_AFTER_S
from rl_insight.collector.series import SeriesTable
from rl_insight.collector.status import EVENT_KINDS, CollectorStatus, ProcessStatus
from rl_insight.errors import SchemaError, UnsupportedVersionError
from rl_insight.intake import Admission, Intake
from rl_insight.metrics import Family, reserved_names
from rl_insight.metrics.by_role import by_role as merged_by_role
from rl_insight.metrics.prometheus import render
from rl_insight.schema import Batch, Loss, Process, decode
from rl_insight.schema.bundle import decode_bundle, is_bundle
from rl_insight.schema.names import DEFAULT_NAMESPACE


class Receipt(msgspec.Struct, frozen=True):
    """What became of a payload handed to a collector."""

    accepted: int = 0
    """Batches that were new."""
    duplicates: int = 0
    """Batches that had been taken before; the sender can forget them too."""


class Published(NamedTuple):
    """A batch that a receiver with a store has committed."""

    batch: Batch
    size: int
    intake: Intake
    """What has been taken from its process."""
    is_new: bool
    """False for one that had been taken before."""


class Collector:
    """Publishes each batch of each process once: merges its metrics, and hands it to every sink.

    - `ingest` takes encoded batches, in any order and any number of times. The ledgers are in memory: this is what the
      Ray hub uses.
    - A receiver with a store commits first and then calls `publish` with each process's `Intake`, which it keeps.
    - All methods are safe to call from several threads. No sink, however slow or broken, makes them wait or fail.
    - A bad payload raises `SchemaError` and changes nothing.

    Args:
        sinks: where batches go; each gets a thread and a bounded queue.
        namespace: the prefix of every exposed metric name.
        reserved: exposed names, besides the collector's, that users' metrics cannot have.
        clock: the wall clock in nanoseconds.
        max_processes: processes remembered, twice as many as one server is made for: beyond it, those that ended leave
            first, then the longest silent, and one that is heard again counts as a new one.
        forget_after_s: after this silence the state needed to merge a process's metrics is freed.
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
            raise ValueError(f"two sinks are called {repeated[0]!r}: give each its own name.")
        self.namespace = namespace
        self._sources = [sink for sink in sinks if sink.declarations]
        declared = [*HEALTH.declarations, *(one for sink in self._sources for one in sink.declarations)]
        self.series = SeriesTable(reserved=reserved_names(declared).union(reserved), forget_after_s=forget_after_s)
        self._admission = Admission()
        self._clock = clock
        self._max_processes = max_processes
        self._lock = Lock()
        self._processes: OrderedDict[str, _PublishedProcess] = OrderedDict()
        """The most recently heard of is last."""
        self._totals = _Totals()
        self._started_ns = clock()
        self._closed = False
        context = SinkContext(namespace, self._started_ns, self.series, self._sources, runs)
        for sink in sinks:
            sink.attach(context)
        self._runners = [SinkRunner(sink) for sink in sinks]

    def ingest(self, payload: bytes) -> Receipt:
        """Take one encoded batch.

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
        """Read and check a payload; one that is refused is counted and changes nothing else.

        Raises:
            SchemaError: it is not a batch that this version can read.
        """
        with self._counting_refusals():
            return self.admit(decode(payload))

    def decode_all(self, payload: bytes) -> list[Batch]:
        """Read and check a payload that may be a bundle of batches.

        Raises:
            SchemaError: it is not a batch that this version can read, or one of the bundle is not.
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
        """Return a batch without the values that cannot be stored.

        Raises:
            SchemaError: nothing of it can be stored.
        """
        return self._admission.admit(batch)

    def publish(self, taken: Iterable[Published]) -> None:
        """Merge the metrics of batches that were taken, and hand them to the sinks; never waits for one.

        Those that had been taken before are counted only.
        """
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
        self._hand_on(fresh, finished)

    def are_published(self, batches: Sequence[Batch]) -> list[bool]:
        """Return whether each batch and all before it have been published; those are then counted as duplicates.

        The same records may be imported into several runs: only those of the batch's run count.
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
        """Wait until every sink has written what it was given; False when it took longer than `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        return all(runner.wait_idle(max(deadline - time.monotonic(), 0.0)) for runner in self._runners)

    def status(self) -> CollectorStatus:
        """Return what was seen, dropped and forwarded."""
        sinks = {runner.sink.name: runner.get_status() for runner in self._runners}
        refused_samples = self.series.refused
        now_ns = self._clock()
        with self._lock:
            totals = deepcopy(self._totals)
            processes = list(self._processes.items())
        # Without the lock: ten thousand processes take 20 ms.
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
        """Return how many processes report now."""
        now_ns = self._clock()
        with self._lock:
            processes = list(self._processes.values())
        return sum(process.intake.liveness(now_ns) == "live" for process in processes)

    def families(self, *, by_role: bool = False) -> list[Family]:
        """Return the recorded metrics, the collector's health and what sinks yield.

        By role there is one series where there was one for each rank, host and GPU.
        """
        recorded = sorted(self.series.families(by_role=by_role), key=lambda family: family.name)
        health = HEALTH.families(self.status())
        if by_role:
            health = merged_by_role(health)
        yielded = (sink.role_families() if by_role else sink.families() for sink in self._sources)
        return [*recorded, *health, *chain.from_iterable(yielded)]

    def metrics_page(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page that Prometheus scrapes, and its content type for an HTTP `Accept` header.

        >>> b"rl_insight_monitor_collector_batches_total 0" in Collector().metrics_page()[0]
        True
        """
        return render(self.families(), self.namespace, accept)

    def drop_run(self, run_id: str) -> None:
        """Remove the metrics of a deleted run; its batches are new if they come again."""
        with self._lock:
            for process in self._processes.values():
                if process.run_id == run_id:
                    process.low_water = 0
        self.series.drop_run(run_id)
        for sink in self._sources:
            sink.drop_run(run_id)

    def get_status(self) -> dict[str, Any]:
        """Return `status()` as plain values that JSON can carry."""
        plain: dict[str, Any] = msgspec.to_builtins(self.status(), enc_hook=str)
        return plain

    def last_batches(self) -> list[tuple[Process, int]]:
        """Return the processes that report now and of which nothing is missing, with the number of their last batch."""
        now_ns = self._clock()
        with self._lock:
            intakes = [process.intake for process in self._processes.values()]
        return [
            (intake.process, intake.ledger.low_water)
            for intake in intakes
            if intake.liveness(now_ns) == "live" and not intake.ledger.has_gaps
        ]

    def close(self, timeout_s: float = 5.0) -> None:
        """Hand on what is queued for at most `timeout_s`, then stop; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        deadline = time.monotonic() + timeout_s
        for runner in self._runners:
            runner.start_closing()
        for runner in self._runners:
            runner.close(max(deadline - time.monotonic(), 0.0))

    def _hand_on(self, batches: list[tuple[Batch, int]], finished: list[str]) -> None:
        self.series.apply(*(batch for batch, _ in batches))
        for process_id in finished:
            self.series.forget(process_id)
        for runner in self._runners:
            runner.put_all(batches)

    def _note(self, batch: Batch, size: int, intake: Intake) -> list[str]:
        """Count a batch; returns the processes whose metrics need no more merging."""
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
            finished.append(self._evict())
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

    def _evict(self) -> str:
        ended = (process_id for process_id, process in self._processes.items() if process.intake.final)
        process_id = next(ended, None) or next(iter(self._processes))
        del self._processes[process_id]
        return process_id


class _Totals(msgspec.Struct):
    """What has been counted over all processes."""

    batches: int = 0
    bytes: int = 0
    duplicates: int = 0
    processes: int = 0
    missing: int = 0
    refused: Counter[str] = msgspec.field(default_factory=Counter)
    events: Counter[str] = msgspec.field(default_factory=lambda: Counter(dict.fromkeys(EVENT_KINDS, 0)))
    losses: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)


class _PublishedProcess(msgspec.Struct):
    """What has been published of one process."""

    intake: Intake
    low_water: int = 0
    """As of the last call: the ledger itself may be ahead by batches that a store has yet to commit."""
    abandoned: int = 0
    batches: int = 0
    events: Counter[str] = msgspec.field(default_factory=lambda: Counter(dict.fromkeys(EVENT_KINDS, 0)))
    losses: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)

    @property
    def run_id(self) -> str:
        """The run that its last batch was for."""
        return self.intake.process.run_id

    def see(self, intake: Intake) -> int:
        """Take over what the ledger says; returns how many more batches it closed a gap over."""
        # A store that opens its file again starts to count anew.
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
