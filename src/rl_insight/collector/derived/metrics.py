"""Metrics derived from spans: time in each state, durations by name, open spans, steps and sessions.

Dashboards and alerts need these as series, but producers only record spans. They are labeled by run, role and rank,
never by lane or session, so their number stays bounded in long runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from rl_insight.collector.base import Sink
from rl_insight.collector.derived import declarations
from rl_insight.collector.derived.state import (
    BoundedSeries,
    Gauges,
    GrowingDistribution,
    OpenSpan,
    ProcessGroup,
    SeriesKey,
    SpanCounts,
    SpanGroup,
    Total,
    TrackedProcess,
    distributions,
    is_state,
    labeled,
    totals,
)
from rl_insight.collector.run_activity import FORGET_AFTER_S, GRACE_S, SWEEP_EVERY_NS, RunActivity, RunKey, run_of
from rl_insight.metrics import Family
from rl_insight.schema import Batch, Process
from rl_insight.schema.names import SESSION_SEGMENT


class DerivedMetrics(Sink):
    """Derives metrics from the batches of a collector.

    >>> collector = Collector([DerivedMetrics()])  # doctest: +SKIP
    >>> body, content_type = collector.metrics_page()  # doctest: +SKIP

    An open span counts toward its state while its process reports. Spans left open by a process that ended, or was
    silent for `forget_after_s`, count up to its last batch.

    Args:
        clock: the wall clock in nanoseconds.
        max_series: the limit for each counter and gauge; beyond it, everything goes to one series named `__overflow__`.
        max_histograms: the same for histograms, whose series have many lines.
        max_open: open spans tracked per process.
        forget_after_s: after this silence, a process is forgotten.
        grace_s: how long the series of an ended run stay.
    """

    name = "derived"
    declarations = declarations.DECLARATIONS

    def __init__(
        self,
        *,
        clock: Callable[[], int] = time.time_ns,
        max_series: int = 100_000,
        max_histograms: int = 500,
        max_open: int = 10_000,
        forget_after_s: float = FORGET_AFTER_S,
        grace_s: float = GRACE_S,
    ) -> None:
        self.started_ns = clock()
        """When counting started."""
        self._clock = clock
        self._max_open = max_open
        self._activity = RunActivity(self._forget, self._drop, forget_after_s=forget_after_s, grace_s=grace_s)
        self._lock = Lock()
        counters = [BoundedSeries(Total, max_series) for _ in range(4)]
        histograms = [BoundedSeries(GrowingDistribution, max_histograms) for _ in range(2)]
        self._states, self._spans, self._seconds, self._sessions = counters
        self._durations, self._session_durations = histograms
        self._tables: tuple[BoundedSeries[Any], ...] = (*counters, *histograms)
        self._processes: dict[str, TrackedProcess] = {}

    def write(self, batch: Batch) -> None:
        """Add the spans, steps and sessions of one batch."""
        now_ns = self._clock()
        with self._lock:
            tracked = self._tracked(batch.process)
            self._activity.note(batch.process, now_ns)
            self._activity.sweep(now_ns, SWEEP_EVERY_NS)
            tracked.note(batch, now_ns)
            self._take_spans(batch, tracked)
            for status in tracked.ended_sessions(batch):
                self._sessions.entry(tracked.source, (("status", status),)).value += 1
            tracked.sequence = max(tracked.sequence, batch.sequence)
            if batch.final:
                self._forget(batch.process.process_id)

    def families(self) -> list[Family]:
        """Return every derived metric that has a series."""
        return self._families(by_role=False)

    def role_families(self) -> list[Family]:
        """Return every derived metric with one series per role."""
        return self._families(by_role=True)

    def _families(self, *, by_role: bool) -> list[Family]:
        now_ns = self._clock()
        with self._lock:
            self._activity.sweep(now_ns)
            gauges = Gauges()
            for tracked in self._processes.values():
                tracked.report(gauges, now_ns, by_role=by_role)
            found = [
                labeled(declarations.STATE_SECONDS, self._state_seconds(by_role=by_role)),
                labeled(declarations.SPANS, totals(self._spans, by_role=by_role)),
                labeled(declarations.SPAN_SECONDS, totals(self._seconds, by_role=by_role)),
                distributions(declarations.SPAN_DURATION_SECONDS, self._durations),
                labeled(declarations.SESSIONS, totals(self._sessions, by_role=by_role)),
                distributions(declarations.SESSION_DURATION_SECONDS, self._session_durations),
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
        """Return the counts of tracked state."""
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
            source = ProcessGroup(run_of(process), process.role, "" if process.rank is None else str(process.rank))
            tracked = TrackedProcess(source, source.of_role, process.host)
            self._processes[process.process_id] = tracked
        return tracked

    def _take_spans(self, batch: Batch, tracked: TrackedProcess) -> None:
        spans = batch.spans
        if not spans.span_id:
            return
        durations, starts = spans.column("duration_ns").tolist(), spans.column("start_ns").tolist()
        traces = (spans.column("trace_high"), spans.column("trace_low"))
        if not tracked.open and min(durations) >= 0 and _is_one_kind(batch):
            name, segment, status = (
                int.from_bytes(raw[:4], "little") for raw in (spans.name, spans.segment, spans.status)
            )
            self._file(batch, tracked, (name, segment, status), SpanGroup(durations, starts, traces))
            return
        keys = list(zip(*(spans.column(name).tolist() for name in ("name", "segment", "status")), strict=True))
        groups: dict[tuple[int, int, int], list[int]] = {}
        for row in self._ended(batch, tracked, durations):
            groups.setdefault(keys[row], []).append(row)
        for key, rows in groups.items():
            group = SpanGroup([durations[row] for row in rows], [starts[row] for row in rows], traces, rows)
            self._file(batch, tracked, key, group)

    def _ended(self, batch: Batch, tracked: TrackedProcess, durations: list[int]) -> Iterable[int]:
        """Return the rows of completed spans, and track the open ones."""
        still_open = tracked.open
        if not still_open and min(durations) >= 0:
            return range(len(durations))
        # An open span that arrives after its completion, in an overtaken batch, stays closed.
        in_order = batch.sequence > tracked.sequence
        names = ("span_id", "name", "segment", "start_ns")
        ended = []
        for row, span in enumerate(zip(*(batch.spans.column(name).tolist() for name in names), strict=True)):
            span_id, name, segment, start_ns = span
            if durations[row] >= 0:
                still_open.pop(span_id, None)
                ended.append(row)
            elif in_order and len(still_open) < self._max_open:
                still_open[span_id] = OpenSpan(batch.text(name) or "", batch.text(segment) or "", start_ns)
        return ended

    def _file(self, batch: Batch, tracked: TrackedProcess, key: tuple[int, int, int], group: SpanGroup) -> None:
        name, segment, status = map(batch.text, key)
        texts = (name or "", segment or "", status or "ok")
        series = tracked.series.get(texts)
        if series is None:
            overflow = self._overflow()
            series = self._series_of(tracked.source, *texts, group.count)
            if overflow == self._overflow():  # otherwise there may be room later
                tracked.series[texts] = series
        series.add(group)

    def _series_of(self, source: ProcessGroup, name: str, segment: str, status: str, count: int) -> SpanCounts:
        # Histograms have no rank label: they have many lines, and `span_seconds` has the ranks.
        of_role = source.of_role
        seconds = [self._seconds.entry(source, (("span_name", name),), count)]
        distributions = [self._durations.entry(of_role, (("segment", segment), ("span_name", name)), count)]
        if is_state(segment, name):
            seconds.append(self._states.entry(source, (("state", name),), count))
        if segment == SESSION_SEGMENT:
            distributions.append(self._session_durations.entry(of_role, (), count))
        spans = self._spans.entry(source, (("span_name", name), ("status", status)), count)
        return SpanCounts(spans, tuple(seconds), tuple(distributions))

    def _forget(self, process_id: str) -> None:
        """Forget a process; its open states count up to its last batch."""
        self._activity.end(process_id)
        tracked = self._processes.pop(process_id, None)
        if tracked is None:
            return
        for state, seconds in tracked.open_states().items():
            self._states.entry(tracked.source, (("state", state),)).value += seconds

    def _drop(self, run: RunKey) -> None:
        for table in self._tables:
            table.drop_run(run)

    def _state_seconds(self, *, by_role: bool) -> dict[SeriesKey, float]:
        """Return the time in each state, including open intervals."""
        states = totals(self._states, by_role=by_role)
        for tracked in self._processes.values():
            for state, seconds in tracked.open_states().items():
                key = self._states.key(tracked.source, (("state", state),), 0)
                if by_role:
                    key = (key[0].of_role, key[1])
                states[key] = states.get(key, 0.0) + seconds
        return states


def _is_one_kind(batch: Batch) -> bool:
    """Return whether all spans have the same name, segment and status, by comparing bytes."""
    spans = batch.spans
    return all(column == column[:4] * (len(column) // 4) for column in (spans.name, spans.segment, spans.status))
