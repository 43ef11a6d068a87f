"""Metrics made from spans: time in each state, durations by name, open work, steps and sessions.

Dashboards and alerts need these as series; producers record them as spans only. They are labelled by run, role and
rank, never by lane or session, so their number stays bounded however long a run is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from rl_insight.collector.base import Sink
from rl_insight.collector.derived_families import FAMILIES, DerivedFamily
from rl_insight.collector.derived_processes import Gauges, OpenSpan, TrackedProcess, is_state
from rl_insight.collector.derived_tables import SECOND, GrowingDurations, Source, SpanGroup, Table, Totals, labels_of
from rl_insight.collector.series import LabelItems, Run
from rl_insight.schema import Batch, Process
from rl_insight.schema.sessions import SESSION_SEGMENT


class DerivedMetrics(Sink):
    """Derives metrics from the batches that a collector hands on.

    >>> derived = DerivedMetrics()
    >>> collector = InProcessCollector([derived])  # doctest: +SKIP
    >>> body, content_type = PrometheusRenderer(collector, derived).render()  # doctest: +SKIP

    An open span counts towards its state as long as its process is heard of. What a process left open when it ended,
    or when it fell silent for `forget_after_s`, counts up to its last batch.

    Args:
        clock: the wall clock in nanoseconds.
        max_series: series of each counter and gauge; what is beyond goes to one series called `__overflow__`.
        max_histograms: the same for histograms, whose series have many lines.
        max_open: open spans that are kept of one process.
        forget_after_s: after this silence a process, and a run without processes, leaves the page.
    """

    name = "derived"

    def __init__(
        self,
        *,
        clock: Callable[[], int] = time.time_ns,
        max_series: int = 20_000,
        max_histograms: int = 500,
        max_open: int = 10_000,
        forget_after_s: float = 3600.0,
    ) -> None:
        self.started_ns = clock()
        """Since when everything is counted."""
        self._clock = clock
        self._max_open = max_open
        self._forget_after_ns = int(forget_after_s * SECOND)
        self._lock = Lock()
        self._states = Totals(max_series)
        self._spans = Totals(max_series)
        self._seconds = Totals(max_series)
        self._sessions = Totals(max_series)
        self._durations = Table[GrowingDurations](max_histograms)
        self._session_durations = Table[GrowingDurations](max_histograms)
        self._processes: dict[str, TrackedProcess] = {}
        self._runs: dict[Run, int] = {}
        """When something of a run last arrived."""

    def write(self, batch: Batch) -> None:
        """Take the spans and the steps of one batch."""
        now_ns = self._clock()
        with self._lock:
            tracked = self._tracked(batch.process)
            self._runs[tracked.source.run] = now_ns
            tracked.note(batch, now_ns)
            self._take_spans(batch, tracked)
            for status in tracked.ended_sessions(batch):
                self._sessions.add(tracked.source, (("status", status),), 1)
            tracked.sequence = max(tracked.sequence, batch.sequence)
            if batch.final:
                self._forget(batch.process.process_id)

    def families(self) -> list[DerivedFamily]:
        """Return every derived metric that has a series."""
        now_ns = self._clock()
        with self._lock:
            self._sweep(now_ns - self._forget_after_ns)
            values = self._values(now_ns)
            durations = {
                "span_duration_seconds": self._durations.items(),
                "session_duration_seconds": self._session_durations.items(),
            }
            found = []
            for name, (kind, documentation) in FAMILIES.items():
                if kind == "histogram":
                    copies = [(labels, entry.copy()) for labels, entry in durations[name]]
                    found.append(DerivedFamily(name, kind, documentation, [], copies))
                else:
                    found.append(DerivedFamily(name, kind, documentation, list(values[name])))
        return [family for family in found if family.values or family.durations]

    def get_status(self) -> dict[str, Any]:
        """Tell how much is kept."""
        with self._lock:
            return {
                "processes": len(self._processes),
                "runs": len(self._runs),
                "open_spans": sum(len(tracked.open) for tracked in self._processes.values()),
                "overflow": self._overflow(),
            }

    def _overflow(self) -> int:
        tables = (self._states, self._spans, self._seconds, self._sessions, self._durations, self._session_durations)
        return sum(table.overflow for table in tables)

    def _tracked(self, process: Process) -> TrackedProcess:
        tracked = self._processes.get(process.process_id)
        if tracked is None:
            tracked = self._processes[process.process_id] = TrackedProcess(process)
        return tracked

    def _take_spans(self, batch: Batch, tracked: TrackedProcess) -> None:
        if not len(batch.spans):
            return
        columns = ("span_id", "trace_high", "trace_low", "start_ns", "duration_ns", "name", "segment", "status")
        groups: dict[tuple[int, int, int], SpanGroup] = {}
        still_open = tracked.open
        # An open span that arrives after its completion, because batches overtook each other, stays closed.
        in_order = batch.sequence > tracked.sequence
        rows = zip(*(batch.spans.column(column).tolist() for column in columns), strict=True)
        for span_id, high, low, start_ns, duration_ns, name, segment, status in rows:
            if duration_ns < 0:
                if in_order and len(still_open) < self._max_open:
                    still_open[span_id] = OpenSpan(batch.text(name) or "", batch.text(segment) or "", start_ns)
                continue
            if still_open:
                still_open.pop(span_id, None)
            group = groups.get((name, segment, status))
            if group is None:
                group = groups[name, segment, status] = SpanGroup()
            group.add(duration_ns, high, low, start_ns)
        for (name, segment, status), group in groups.items():
            texts = (batch.text(name) or "", batch.text(segment) or "", batch.text(status) or "ok")
            self._file(tracked.source, *texts, group)

    def _file(self, source: Source, name: str, segment: str, status: str, group: SpanGroup) -> None:
        seconds = group.total_ns / SECOND
        if is_state(segment, name):
            self._states.add(source, (("state", name),), seconds, group.count)
        if segment == SESSION_SEGMENT:
            self._merge(self._session_durations, source, (), group)
        self._spans.add(source, (("span_name", name), ("status", status)), group.count, group.count)
        self._seconds.add(source, (("span_name", name),), seconds, group.count)
        self._merge(self._durations, source, (("segment", segment), ("span_name", name)), group)

    @staticmethod
    def _merge(table: Table[GrowingDurations], source: Source, labels: LabelItems, group: SpanGroup) -> None:
        # Without the rank: a histogram has many lines, and `span_seconds` tells ranks apart.
        key = table.key(source._replace(rank=""), labels, group.count)
        entry = table.entries.get(key)
        if entry is None:
            entry = table.entries[key] = GrowingDurations()
        entry.merge(group)

    def _forget(self, process_id: str) -> None:
        """Let go of a process; the states it left open count up to its last batch."""
        tracked = self._processes.pop(process_id, None)
        if tracked is None:
            return
        for state, seconds in tracked.open_states().items():
            self._states.add(tracked.source, (("state", state),), seconds)

    def _sweep(self, since_ns: int) -> None:
        for process_id in [name for name, kept in self._processes.items() if kept.received_ns < since_ns]:
            self._forget(process_id)
        live = {tracked.source.run for tracked in self._processes.values()}
        for run in [run for run, seen_ns in self._runs.items() if seen_ns < since_ns and run not in live]:
            del self._runs[run]
            for table in (self._states, self._spans, self._seconds, self._sessions):
                table.drop_run(run)
            self._durations.drop_run(run)
            self._session_durations.drop_run(run)

    def _values(self, now_ns: int) -> dict[str, Iterable[tuple[LabelItems, float]]]:
        gauges = Gauges()
        states = dict(self._states.entries)
        for tracked in self._processes.values():
            tracked.report(gauges, now_ns)
            for state, seconds in tracked.open_states().items():
                key = self._states.key(tracked.source, (("state", state),), 0)
                states[key] = states.get(key, 0.0) + seconds
        overflow = self._overflow()
        return {
            "state_seconds": [(labels_of(*key), value) for key, value in states.items()],
            "spans": self._spans.items(),
            "span_seconds": self._seconds.items(),
            "sessions": self._sessions.items(),
            "derived_overflow": [((), overflow)],
            **{name: family.items() for name, family in gauges.families.items()},
        }
