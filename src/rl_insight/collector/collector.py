"""The collector that the Ray hub and the server share."""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

import msgspec

from rl_insight.collector.base import Collector, Receipt, Sink, SinkContext
from rl_insight.collector.clock import ClockOffset
from rl_insight.collector.fanout import SinkRunner
from rl_insight.collector.health import HEALTH
from rl_insight.collector.ledger import SequenceLedger
from rl_insight.collector.run_activity import FORGET_AFTER_S
from rl_insight.collector.series import SeriesTable
from rl_insight.collector.status import EVENT_KINDS, CollectorStatus, ProcessStatus
from rl_insight.errors import SchemaError, UnsupportedVersionError
from rl_insight.metrics import Family, reserved_names
from rl_insight.metrics.prometheus import render
from rl_insight.schema import Batch, Loss, Process, decode
from rl_insight.schema.names import DEFAULT_NAMESPACE

logger = logging.getLogger(__name__)

_SECOND = 1_000_000_000
_SILENT_HEARTBEATS = 3
_SWEEP_EVERY_NS = 60 * _SECOND


class InProcessCollector(Collector):
    """Takes each batch of each process once, merges its metrics, and hands it to every sink.

    `ingest` does it all. An owner that must make a batch durable before it is acknowledged takes the steps apart:

    >>> collector = InProcessCollector()
    >>> def ingest_durably(payload, commit):
    ...     batch = collector.decode(payload)
    ...     if not collector.claim(batch):
    ...         return Receipt(duplicates=1)
    ...     try:
    ...         commit(batch)
    ...     except Exception:
    ...         collector.release(batch)
    ...         raise
    ...     collector.publish(batch, len(payload))
    ...     return Receipt(accepted=1)

    Args:
        sinks: where batches go; each gets a thread and a bounded queue of its own.
        namespace: stands before every exposed metric name.
        clock: the wall clock in nanoseconds.
        ledger: what has been taken before, where the owner keeps that across restarts.
        max_processes: processes listed in the status. Beyond it the one that was silent longest leaves the list.
        forget_after_s: after this silence what is kept to merge a process's metrics is freed.
        reserved: further metric names that recorded metrics cannot use.
    """

    def __init__(
        self,
        sinks: Iterable[Sink] = (),
        *,
        namespace: str = DEFAULT_NAMESPACE,
        clock: Callable[[], int] = time.time_ns,
        ledger: SequenceLedger | None = None,
        max_processes: int = 10_000,
        forget_after_s: float = FORGET_AFTER_S,
        reserved: Iterable[str] = (),
    ) -> None:
        sinks = list(sinks)
        names = Counter(sink.name for sink in sinks)
        if repeated := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"two sinks are called {repeated[0]!r}: give each a name of its own.")
        self.namespace = namespace
        self._sources = [sink for sink in sinks if sink.declarations]
        declared = [*HEALTH.declarations, *(one for sink in self._sources for one in sink.declarations)]
        self.series = SeriesTable(reserved=reserved_names(declared).union(reserved), forget_after_s=forget_after_s)
        self.ledger = ledger if ledger is not None else SequenceLedger()
        self._clock = clock
        self._max_processes = max_processes
        self._forget_after_ns = int(forget_after_s * _SECOND)
        self._lock = Lock()
        self._processes: OrderedDict[str, _ProcessState] = OrderedDict()
        """Those heard of last stand at the end."""
        self._totals = _Totals()
        self._started_ns = self._swept_ns = clock()
        self._closed = False
        context = SinkContext(namespace, self._started_ns, self.series, self._sources)
        for sink in sinks:
            sink.attach(context)
        self._runners = [SinkRunner(sink) for sink in sinks]

    def ingest(self, payload: bytes) -> Receipt:
        """Take one encoded batch."""
        return self.accept(self.decode(payload), len(payload))

    def accept(self, batch: Batch, size: int = 0) -> Receipt:
        """Take one decoded batch that was `size` bytes long."""
        if not self.claim(batch):
            return Receipt(duplicates=1)
        self.publish(batch, size)
        return Receipt(accepted=1)

    def decode(self, payload: bytes) -> Batch:
        """Read and check a payload; one that is refused is counted and changes nothing else.

        Raises:
            SchemaError: it is not a batch that this version can read.
        """
        try:
            return _decode(payload)
        except SchemaError as error:
            reason = "version" if isinstance(error, UnsupportedVersionError) else "schema"
            with self._lock:
                self._totals.refused[reason] += 1
            raise

    def claim(self, batch: Batch) -> bool:
        """Take a batch's place in the ledger; False, and counted, when it had been taken before."""
        if self.ledger.claim(batch.process.process_id, batch.sequence):
            return True
        with self._lock:
            self._totals.duplicates += 1
        return False

    def release(self, batch: Batch) -> None:
        """Give a claim back, because the batch could not be kept: its sender will send it again."""
        self.ledger.release(batch.process.process_id, batch.sequence)

    def publish(self, batch: Batch, size: int = 0) -> None:
        """Merge the metrics of a claimed batch and hand it to the sinks; never waits for one."""
        self.series.apply(batch)
        with self._lock:
            finished = self._note(batch, size)
        for process_id in finished:
            self.series.forget(process_id)
            self.ledger.end(process_id)
        for runner in self._runners:
            runner.put(batch, size)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until every sink has written what it was given; False when it took longer than `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        return all(runner.wait_idle(max(deadline - time.monotonic(), 0.0)) for runner in self._runners)

    def status(self) -> CollectorStatus:
        """Tell what was seen, dropped and forwarded."""
        sinks = {runner.sink.name: runner.get_status() for runner in self._runners}
        refused_samples = self.series.refused
        now_ns = self._clock()
        with self._lock:
            totals = self._totals
            return CollectorStatus(
                started_ns=self._started_ns,
                batches=totals.batches,
                bytes=totals.bytes,
                duplicates=totals.duplicates,
                refused=dict(totals.refused),
                events=dict(totals.events),
                losses=_losses(totals.losses),
                missing_batches=self.ledger.given_up,
                series=len(self.series),
                refused_samples=refused_samples,
                processes_seen=totals.processes,
                processes={name: state.status(now_ns) for name, state in self._processes.items()},
                sinks=sinks,
            )

    def families(self) -> list[Family]:
        """Return the recorded metrics, the collector's health and what sinks yield."""
        recorded = sorted(self.series.families(), key=lambda family: family.name)
        return [*recorded, *HEALTH.families(self.status()), *(one for sink in self._sources for one in sink.families())]

    def metrics_page(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page that Prometheus scrapes, and its content type for an HTTP `Accept` header.

        >>> b"rl_insight_monitor_collector_batches_total 0" in InProcessCollector().metrics_page()[0]
        True
        """
        return render(self.families(), self.namespace, accept)

    def drop_run(self, run_id: str) -> None:
        """Remove the metrics of a deleted run."""
        self.series.drop_run(run_id)
        for sink in self._sources:
            sink.drop_run(run_id)

    def get_status(self) -> dict[str, Any]:
        """Tell what was seen, dropped and forwarded, as plain values; `CollectorStatus` names the fields."""
        plain: dict[str, Any] = msgspec.to_builtins(self.status(), enc_hook=str)
        return plain

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

    def _note(self, batch: Batch, size: int) -> list[str]:
        """Count a batch; returns the processes whose metrics need no more merging."""
        now_ns = self._clock()
        process_id = batch.process.process_id
        state = self._processes.get(process_id)
        if state is None:
            state = self._processes[process_id] = _ProcessState(batch.process)
            self._totals.processes += 1
        self._processes.move_to_end(process_id)
        state.note(batch, now_ns)
        self._totals.note(batch, size, state.new_losses(batch.losses))
        finished = [process_id] if state.is_complete else []
        if len(self._processes) > self._max_processes:
            finished.append(self._processes.popitem(last=False)[0])
        if now_ns - self._swept_ns >= _SWEEP_EVERY_NS:
            self._swept_ns = now_ns
            finished += self._silent_since(now_ns - self._forget_after_ns)
        return finished

    def _silent_since(self, since_ns: int) -> list[str]:
        silent = []
        for process_id, state in self._processes.items():
            if state.last_seen_ns > since_ns:
                break
            if not state.is_forgotten:
                state.is_forgotten = True
                silent.append(process_id)
        return silent


class _Totals:
    """What has been counted over all processes."""

    def __init__(self) -> None:
        self.batches = self.bytes = self.duplicates = self.processes = 0
        self.refused: Counter[str] = Counter()
        self.events: Counter[str] = Counter(dict.fromkeys(EVENT_KINDS, 0))
        self.losses: Counter[tuple[str, str]] = Counter()

    def note(self, batch: Batch, size: int, new_losses: Counter[tuple[str, str]]) -> None:
        self.batches += 1
        self.bytes += size
        for kind in EVENT_KINDS:
            self.events[kind] += len(getattr(batch, kind))
        self.losses.update(new_losses)


class _ProcessState:
    """What is kept about one process."""

    __slots__ = ("batches", "clock", "events", "final_sequence", "is_forgotten", "last_seen_ns", "losses", "process")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.last_seen_ns = 0
        self.batches = 0
        self.events: Counter[str] = Counter(dict.fromkeys(EVENT_KINDS, 0))
        self.losses: Counter[tuple[str, str]] = Counter()
        self.clock = ClockOffset()
        self.final_sequence: int | None = None
        self.is_forgotten = False

    def note(self, batch: Batch, now_ns: int) -> None:
        self.process = batch.process
        self.last_seen_ns = now_ns
        self.is_forgotten = False
        self.batches += 1
        self.clock.observe(sent_ns=batch.sent_ns, received_ns=now_ns)
        for kind in EVENT_KINDS:
            self.events[kind] += len(getattr(batch, kind))
        if batch.final:
            self.final_sequence = batch.sequence

    @property
    def is_complete(self) -> bool:
        """True when the last batch and all before it are here: nothing can follow."""
        return self.final_sequence is not None and self.batches >= self.final_sequence

    def new_losses(self, losses: list[Loss]) -> Counter[tuple[str, str]]:
        """Return by how much the process's losses, which it reports as totals, have grown."""
        new: Counter[tuple[str, str]] = Counter()
        for loss in losses:
            key = (loss.kind, loss.reason)
            if loss.count > self.losses[key]:
                new[key] = loss.count - self.losses[key]
                self.losses[key] = loss.count
        return new

    def status(self, now_ns: int) -> ProcessStatus:
        process = self.process
        silence_ns = now_ns - self.last_seen_ns
        final = self.final_sequence is not None
        return ProcessStatus(
            process_id=process.process_id,
            run_id=process.run_id,
            project=process.project,
            experiment_name=process.experiment_name,
            host=process.host,
            pid=process.pid,
            role=process.role,
            rank=process.rank,
            last_seen_ns=self.last_seen_ns,
            batches=self.batches,
            events=dict(self.events),
            losses=_losses(self.losses),
            clock_offset_ns=self.clock.offset_ns,
            final=final,
            silent=not final and silence_ns > process.heartbeat_s * _SILENT_HEARTBEATS * _SECOND,
        )


def _decode(payload: bytes) -> Batch:
    batch = decode(payload)
    if batch.sequence < 1:
        raise SchemaError(f"not a batch: sequence {batch.sequence}, though sequences count from 1.")
    if not batch.process.process_id:
        raise SchemaError("not a batch: its process has no id.")
    return batch


def _losses(counts: Counter[tuple[str, str]]) -> list[Loss]:
    return [Loss(kind, reason, count) for (kind, reason), count in sorted(counts.items())]
