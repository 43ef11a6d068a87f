"""Metrics made from spans: time in each state, durations by name, open work, steps and sessions.

Dashboards and alerts need these as series; producers record them as spans only. They are labelled by run, role and
rank, never by lane or session, so their number stays bounded however long a run is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

from rl_insight.collector.base import Sink
from rl_insight.collector.derived import declarations
from rl_insight.collector.derived.processes import Gauges, OpenSpan, TrackedProcess, is_state
from rl_insight.collector.derived.tables import (
    SECOND,
    Distributions,
    EndedSpan,
    ProcessGroup,
    SpanGroup,
    Totals,
    labels_of,
)
from rl_insight.collector.run_activity import FORGET_AFTER_S, GRACE_S, SWEEP_EVERY_NS, RunActivity, RunKey
from rl_insight.metrics import Family, LabelItems
from rl_insight.schema import Batch, Process
from rl_insight.schema.names import SESSION_SEGMENT


class DerivedMetrics(Sink):
    """Derives metrics from the batches that a collector hands on.

    >>> collector = Collector([DerivedMetrics()])  # doctest: +SKIP
    >>> body, content_type = collector.metrics_page()  # doctest: +SKIP

    An open span counts toward its state as long as its process reports. What a process left open when it ended, or when
    it fell silent for `forget_after_s`, counts up to its last batch.

    Args:
        clock: the wall clock in nanoseconds.
        max_series: series of each counter and gauge; what is beyond goes to one series called `__overflow__`.
        max_histograms: the same for histograms, whose series have many lines.
        max_open: open spans that are kept of one process.
        forget_after_s: after this silence a process is forgotten.
        grace_s: how long the series of an ended run stay.
    """

    name = "derived"
    declarations = declarations.DECLARATIONS

    def __init__(
        self,
        *,
        clock: Callable[[], int] = time.time_ns,
        max_series: int = 20_000,
        max_histograms: int = 500,
        max_open: int = 10_000,
        forget_after_s: float = FORGET_AFTER_S,
        grace_s: float = GRACE_S,
    ) -> None:
        self.started_ns = clock()
        """Since when everything is counted."""
        self._clock = clock
        self._max_open = max_open
        self._activity = RunActivity(forget_after_s=forget_after_s, grace_s=grace_s)
        self._lock = Lock()
        self._states = Totals(max_series)
        self._spans = Totals(max_series)
        self._seconds = Totals(max_series)
        self._sessions = Totals(max_series)
        self._durations = Distributions(max_histograms)
        self._session_durations = Distributions(max_histograms)
        self._tables = (
            *(self._states, self._spans, self._seconds, self._sessions),
            *(self._durations, self._session_durations),
        )
        self._processes: dict[str, TrackedProcess] = {}

    def write(self, batch: Batch) -> None:
        """Take the spans and the steps of one batch."""
        now_ns = self._clock()
        with self._lock:
            tracked = self._tracked(batch.process)
            self._activity.note(batch.process, now_ns)
            self._sweep(now_ns, SWEEP_EVERY_NS)
            tracked.note(batch, now_ns)
            self._take_spans(batch, tracked)
            for status in tracked.ended_sessions(batch):
                self._sessions.add(tracked.source, (("status", status),), 1)
            tracked.sequence = max(tracked.sequence, batch.sequence)
            if batch.final:
                self._forget(batch.process.process_id)

    def families(self) -> list[Family]:
        """Return every derived metric that has a series."""
        now_ns = self._clock()
        with self._lock:
            self._sweep(now_ns)
            gauges = Gauges()
            for tracked in self._processes.values():
                tracked.report(gauges, now_ns)
            found = [
                declarations.STATE_SECONDS.family(self._state_seconds()),
                declarations.SPANS.family(self._spans.items()),
                declarations.SPAN_SECONDS.family(self._seconds.items()),
                self._durations.family(declarations.SPAN_DURATION_SECONDS),
                declarations.SESSIONS.family(self._sessions.items()),
                self._session_durations.family(declarations.SESSION_DURATION_SECONDS),
                *gauges.families(),
                declarations.DERIVED_OVERFLOW.family([((), self._overflow())]),
            ]
        return [family for family in found if family.points]

    def drop_run(self, run_id: str) -> None:
        """Remove every series of a deleted run."""
        with self._lock:
            for process_id in [name for name, kept in self._processes.items() if kept.source.run.run_id == run_id]:
                del self._processes[process_id]
            for run in self._activity.drop(run_id):
                self._drop(run)

    def get_status(self) -> dict[str, Any]:
        """Return how much is kept."""
        with self._lock:
            return {
                "processes": len(self._processes),
                "runs": len(self._activity),
                "open_spans": sum(len(tracked.open) for tracked in self._processes.values()),
                "overflow": self._overflow(),
            }

    def _overflow(self) -> int:
        return sum(table.overflow for table in self._tables)

    def _tracked(self, process: Process) -> TrackedProcess:
        tracked = self._processes.get(process.process_id)
        if tracked is None:
            tracked = self._processes[process.process_id] = TrackedProcess(process)
        return tracked

    def _take_spans(self, batch: Batch, tracked: TrackedProcess) -> None:
        if not len(batch.spans):
            return
        still_open = tracked.open
        # An open span that arrives after its completion, because batches overtook each other, stays closed.
        in_order = batch.sequence > tracked.sequence
        groups: dict[tuple[int, int, int], list[EndedSpan]] = {}
        keys = zip(*(batch.spans.column(name).tolist() for name in ("name", "segment", "status")), strict=True)
        columns = ("duration_ns", "trace_high", "trace_low", "start_ns")
        rows = zip(*(batch.spans.column(name).tolist() for name in columns), strict=True)
        for span_id, key, row in zip(batch.spans.column("span_id").tolist(), keys, rows, strict=True):
            if row[0] < 0:
                if in_order and len(still_open) < self._max_open:
                    name, segment, _ = key
                    still_open[span_id] = OpenSpan(batch.text(name) or "", batch.text(segment) or "", row[3])
                continue
            if still_open:
                still_open.pop(span_id, None)
            group = groups.get(key)
            if group is None:
                groups[key] = [row]
            else:
                group.append(row)
        for (name, segment, status), group in groups.items():
            texts = (batch.text(name) or "", batch.text(segment) or "", batch.text(status) or "ok")
            self._file(tracked.source, *texts, SpanGroup(group))

    def _file(self, source: ProcessGroup, name: str, segment: str, status: str, group: SpanGroup) -> None:
        seconds = group.total_ns / SECOND
        if is_state(segment, name):
            self._states.add(source, (("state", name),), seconds, group.count)
        if segment == SESSION_SEGMENT:
            self._session_durations.add(source, (), group)
        self._spans.add(source, (("span_name", name), ("status", status)), group.count, group.count)
        self._seconds.add(source, (("span_name", name),), seconds, group.count)
        self._durations.add(source, (("segment", segment), ("span_name", name)), group)

    def _forget(self, process_id: str) -> None:
        """Forget a process; the states it left open count up to its last batch."""
        self._activity.end(process_id)
        tracked = self._processes.pop(process_id, None)
        if tracked is None:
            return
        for state, seconds in tracked.open_states().items():
            self._states.add(tracked.source, (("state", state),), seconds)

    def _sweep(self, now_ns: int, every_ns: int = 0) -> None:
        silent, ended = self._activity.sweep(now_ns, every_ns)
        for process_id in silent:
            self._forget(process_id)
        for run in ended:
            self._drop(run)

    def _drop(self, run: RunKey) -> None:
        for table in self._tables:
            table.drop_run(run)

    def _state_seconds(self) -> Iterator[tuple[LabelItems, float]]:
        """Return the time in every state, open intervals included."""
        states = dict(self._states.entries)
        for tracked in self._processes.values():
            for state, seconds in tracked.open_states().items():
                key = self._states.key(tracked.source, (("state", state),), 0)
                states[key] = states.get(key, 0.0) + seconds
        return ((labels_of(*key), value) for key, value in states.items())
