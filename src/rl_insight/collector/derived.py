"""Metrics made from spans: time in each state, durations by name, open work, steps and sessions.

Dashboards and alerts need these as series; producers record them as spans only. They are labelled by run, role and
rank, never by lane or session, so their number stays bounded however long a run is.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from rl_insight.collector.base import Sink
from rl_insight.collector.series import LabelItems, Run
from rl_insight.schema import NO_STEP, Batch, Process
from rl_insight.schema.names import OVERFLOW_LABEL, MetricKind

STATE_SEGMENT = "state_interval"
SESSION_SEGMENT = "session"
"""The segment of the span that covers a whole session; its status, or its `status` attribute, is the outcome."""

DURATION_BOUNDS = tuple(round(0.001 * 2 ** (index / 2), 9) for index in range(45))
"""Seconds, from a millisecond to 70 minutes, two bounds an octave."""

_SECOND = 1_000_000_000
_BOUNDS_NS = [int(bound * _SECOND) for bound in DURATION_BOUNDS]

_FAMILIES: dict[str, tuple[MetricKind, str]] = {
    "state_seconds": ("counter", "Time spent in a state, on all lanes together; running states count as they go on."),
    "spans": ("counter", "Spans that ended."),
    "span_seconds": ("counter", "Time in spans that ended."),
    "span_duration_seconds": ("histogram", "How long spans took."),
    "sessions": ("counter", "Sessions that ended, by outcome."),
    "session_duration_seconds": ("histogram", "How long sessions took."),
    "open_spans": ("gauge", "Spans that are open for longer than one flush."),
    "open_span_oldest_seconds": ("gauge", "For how long the oldest of the open spans has been open."),
    "open_sessions": ("gauge", "Sessions that are open."),
    "current_step": ("gauge", "The highest training step that was seen."),
    "last_step_timestamp_seconds": ("gauge", "When the training step last grew, by the collector's clock."),
    "process_last_seen_timestamp_seconds": ("gauge", "When a process was last heard of, by the collector's clock."),
    "derived_overflow": ("counter", "Spans filed under __overflow__, because there were too many series."),
}

DERIVED_NAMES = frozenset(f"{name}_total" if kind == "counter" else name for name, (kind, _) in _FAMILIES.items())
"""Exposed names, without the namespace."""


class Exemplar(NamedTuple):
    """One span that stands for the others in its bucket."""

    trace_id: str
    seconds: float
    time_ns: int


class Durations(msgspec.Struct, frozen=True):
    """A distribution over `DURATION_BOUNDS`; the last count is for what is longer than all of them."""

    counts: list[int]
    seconds: float
    exemplars: dict[int, Exemplar]
    """By position in `counts`."""


class DerivedFamily(msgspec.Struct, frozen=True):
    """All series of one derived metric at one moment."""

    name: str
    """Without a namespace; a counter's without `_total`."""
    kind: MetricKind
    documentation: str
    values: list[tuple[LabelItems, float]] = []
    durations: list[tuple[LabelItems, Durations]] = []


class Source(NamedTuple):
    """Processes that are counted together: those of one role and rank in a run."""

    run: Run
    role: str
    rank: str


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
        self._clock = clock
        self._max_open = max_open
        self._forget_after_ns = int(forget_after_s * _SECOND)
        self._lock = Lock()
        self._states = _Table[float](max_series)
        self._spans = _Table[float](max_series)
        self._seconds = _Table[float](max_series)
        self._sessions = _Table[float](max_series)
        self._durations = _Table[_Durations](max_histograms)
        self._session_durations = _Table[_Durations](max_histograms)
        self._processes: dict[str, _Tracked] = {}
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
            for name, (kind, documentation) in _FAMILIES.items():
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

    def _tracked(self, process: Process) -> _Tracked:
        tracked = self._processes.get(process.process_id)
        if tracked is None:
            tracked = self._processes[process.process_id] = _Tracked(process)
        return tracked

    def _take_spans(self, batch: Batch, tracked: _Tracked) -> None:
        if not len(batch.spans):
            return
        columns = ("span_id", "trace_high", "trace_low", "start_ns", "duration_ns", "name", "segment", "status")
        groups: dict[tuple[int, int, int], _Group] = {}
        still_open = tracked.open
        # An open span that arrives after its completion, because batches overtook each other, stays closed.
        in_order = batch.sequence > tracked.sequence
        for span_id, high, low, start_ns, duration_ns, *key in zip(*map(batch.spans.column, columns), strict=True):
            if duration_ns < 0:
                if in_order and len(still_open) < self._max_open:
                    name, segment = batch.text(key[0]) or "", batch.text(key[1]) or ""
                    still_open[span_id] = _OpenSpan(name, segment, start_ns)
                continue
            if still_open:
                still_open.pop(span_id, None)
            group = groups.get(tuple(key))  # type: ignore[arg-type]  # three columns, so three numbers
            if group is None:
                group = groups[key[0], key[1], key[2]] = _Group()
            group.add(duration_ns, high, low, start_ns)
        for (name_at, segment_at, status_at), group in groups.items():
            texts = (batch.text(name_at) or "", batch.text(segment_at) or "", batch.text(status_at) or "ok")
            self._file(tracked.source, *texts, group)

    def _file(self, source: Source, name: str, segment: str, status: str, group: _Group) -> None:
        seconds = group.total_ns / _SECOND
        if segment == STATE_SEGMENT:
            self._states.add(source, (("state", name),), seconds)
        if segment == SESSION_SEGMENT:
            self._sessions.add(source, (("status", status),), group.count)
            self._merge(self._session_durations, source, (), group)
        self._spans.add(source, (("span_name", name), ("status", status)), group.count)
        self._seconds.add(source, (("span_name", name),), seconds)
        self._merge(self._durations, source, (("segment", segment), ("span_name", name)), group)

    @staticmethod
    def _merge(table: _Table[_Durations], source: Source, labels: LabelItems, group: _Group) -> None:
        # Without the rank: a histogram has many lines, and `span_seconds` tells ranks apart.
        key = table.key(source._replace(rank=""), labels, group.count)
        entry = table.entries.get(key)
        if entry is None:
            entry = table.entries[key] = _Durations()
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
        gauges = _Gauges()
        states = dict(self._states.entries)
        for tracked in self._processes.values():
            tracked.report(gauges, now_ns)
            for state, seconds in tracked.open_states().items():
                key = self._states.key(tracked.source, (("state", state),), 0)
                states[key] = states.get(key, 0.0) + seconds
        overflow = self._overflow()
        return {
            "state_seconds": [(_labels(*key), value) for key, value in states.items()],
            "spans": self._spans.items(),
            "span_seconds": self._seconds.items(),
            "sessions": self._sessions.items(),
            "derived_overflow": [((), overflow)],
            **gauges.families,
        }


_Entry = Any
_Key = tuple[Source, LabelItems]
_OVERFLOW_KEY: _Key = (Source(Run("", "", ""), OVERFLOW_LABEL, ""), ())


class _Table(dict[str, Any].__class__ if False else object):  # type: ignore[misc]
    pass
