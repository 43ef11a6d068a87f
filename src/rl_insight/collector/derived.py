"""Metrics made from spans: time in each state, durations by name, open work, steps and sessions.

Dashboards and alerts need these as series; producers record them as spans only. They are labelled by run, role and
rank, never by lane or session, so their number stays bounded however long a run is.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from rl_insight.collector.base import Sink
from rl_insight.collector.series import LabelItems, Run
from rl_insight.schema import NO_STEP, Batch, Process
from rl_insight.schema.names import OVERFLOW_LABEL, MetricKind
from rl_insight.schema.sessions import EXECUTION, PENDING, PHASE_SEGMENT, SESSION_SEGMENT

STATE_SEGMENT = "state_interval"
DURATION_BOUNDS = tuple(round(0.001 * 2 ** (index / 2), 9) for index in range(45))
"""Seconds, from a millisecond to 70 minutes, two bounds an octave."""

_SECOND = 1_000_000_000
_BOUNDS_NS = [int(bound * _SECOND) for bound in DURATION_BOUNDS]

_FAMILIES: dict[str, tuple[MetricKind, str]] = {
    "state_seconds": (
        "counter",
        "Time in a state or in a phase of a session, on all lanes; what runs counts as it goes on.",
    ),
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


_Entry = TypeVar("_Entry")
_Key = tuple[Source, LabelItems]
_OVERFLOW_KEY: _Key = (Source(Run("", "", ""), OVERFLOW_LABEL, ""), ())
_MAX_OPEN_SERIES = 5_000
_MAX_ENDED_SESSIONS = 10_000


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
        self._states = _Totals(max_series)
        self._spans = _Totals(max_series)
        self._seconds = _Totals(max_series)
        self._sessions = _Totals(max_series)
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
        rows = zip(*(batch.spans.column(column).tolist() for column in columns), strict=True)
        for span_id, high, low, start_ns, duration_ns, name, segment, status in rows:
            if duration_ns < 0:
                if in_order and len(still_open) < self._max_open:
                    still_open[span_id] = _OpenSpan(batch.text(name) or "", batch.text(segment) or "", start_ns)
                continue
            if still_open:
                still_open.pop(span_id, None)
            group = groups.get((name, segment, status))
            if group is None:
                group = groups[name, segment, status] = _Group()
            group.add(duration_ns, high, low, start_ns)
        for (name, segment, status), group in groups.items():
            texts = (batch.text(name) or "", batch.text(segment) or "", batch.text(status) or "ok")
            self._file(tracked.source, *texts, group)

    def _file(self, source: Source, name: str, segment: str, status: str, group: _Group) -> None:
        seconds = group.total_ns / _SECOND
        if _is_state(segment, name):
            self._states.add(source, (("state", name),), seconds, group.count)
        if segment == SESSION_SEGMENT:
            self._merge(self._session_durations, source, (), group)
        self._spans.add(source, (("span_name", name), ("status", status)), group.count, group.count)
        self._seconds.add(source, (("span_name", name),), seconds, group.count)
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
            **{name: family.items() for name, family in gauges.families.items()},
        }


class _Table(Generic[_Entry]):
    """The series of one metric; past `limit` everything new shares one series."""

    def __init__(self, limit: int) -> None:
        self.entries: dict[_Key, _Entry] = {}
        self.overflow = 0
        self._limit = limit

    def key(self, source: Source, labels: LabelItems, count: int) -> _Key:
        """Return the key to file `count` spans under."""
        key = (source, labels)
        if key in self.entries or len(self.entries) < self._limit:
            return key
        self.overflow += count
        return _OVERFLOW_KEY

    def items(self) -> Iterator[tuple[LabelItems, _Entry]]:
        """Yield every series with its labels."""
        return ((_labels(*key), entry) for key, entry in self.entries.items())

    def drop_run(self, run: Run) -> None:
        """Remove every series of a run."""
        for key in [key for key in self.entries if key[0].run == run]:
            del self.entries[key]


class _Totals(_Table[float]):
    def add(self, source: Source, labels: LabelItems, amount: float, count: int = 1) -> None:
        key = self.key(source, labels, count)
        self.entries[key] = self.entries.get(key, 0.0) + amount


class _Group:
    """Completed spans of one name, segment and status in one batch."""

    __slots__ = ("buckets", "count", "exemplars", "total_ns")

    def __init__(self) -> None:
        self.count = 0
        self.total_ns = 0
        self.buckets: dict[int, int] = {}
        self.exemplars: dict[int, tuple[int, int, int, int]] = {}

    def add(self, duration_ns: int, high: int, low: int, start_ns: int) -> None:
        self.count += 1
        self.total_ns += duration_ns
        bucket = bisect_left(_BOUNDS_NS, duration_ns)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.exemplars[bucket] = (high, low, duration_ns, start_ns)


class _Durations:
    """A distribution in the making."""

    __slots__ = ("counts", "exemplars", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_NS) + 1)
        self.seconds = 0.0
        self.exemplars: dict[int, Exemplar] = {}

    def merge(self, group: _Group) -> None:
        self.seconds += group.total_ns / _SECOND
        for bucket, count in group.buckets.items():
            self.counts[bucket] += count
        for bucket, (high, low, duration_ns, start_ns) in group.exemplars.items():
            if high or low:
                trace_id = f"{high:016x}{low:016x}"
                self.exemplars[bucket] = Exemplar(trace_id, duration_ns / _SECOND, start_ns + duration_ns)

    def copy(self) -> Durations:
        return Durations(self.counts.copy(), self.seconds, self.exemplars.copy())


class _OpenSpan(NamedTuple):
    name: str
    segment: str
    start_ns: int


class _Tracked:
    """What is kept about one process."""

    __slots__ = ("ended", "host", "open", "pending", "received_ns", "sent_ns", "sequence", "source", "step", "step_ns")

    def __init__(self, process: Process) -> None:
        run = Run(process.project, process.experiment_name, process.run_id)
        self.source = Source(run, process.role, "" if process.rank is None else str(process.rank))
        self.host = process.host
        self.sequence = 0
        self.sent_ns = self.received_ns = 0
        self.step: int | None = None
        self.step_ns = 0
        self.open: dict[int, _OpenSpan] = {}
        self.pending: set[str] = set()
        """Sessions that go on."""
        self.ended: OrderedDict[str, None] = OrderedDict()
        """The sessions that ended last: a further snapshot of one of them counts nothing."""

    def note(self, batch: Batch, now_ns: int) -> None:
        self.sent_ns = max(self.sent_ns, batch.sent_ns)
        self.received_ns = now_ns
        step = max(_largest(batch.spans.column("step")), _largest(batch.samples.column("step")))
        if step != NO_STEP and (self.step is None or step > self.step):
            self.step, self.step_ns = step, now_ns

    def ended_sessions(self, batch: Batch) -> Iterator[str]:
        """Note the sessions of a batch; yields the status of each that has ended since."""
        if not len(batch.sessions):
            return
        ids, statuses = batch.sessions.column("session_id"), batch.sessions.column("status")
        for session_at, status_at in zip(ids, statuses, strict=True):
            session_id, status = batch.text(session_at) or "", batch.text(status_at) or PENDING
            if session_id in self.ended:
                continue
            if status == PENDING:
                self.pending.add(session_id)
                continue
            self.pending.discard(session_id)
            self.ended[session_id] = None
            if len(self.ended) > _MAX_ENDED_SESSIONS:
                self.ended.popitem(last=False)
            yield status

    def open_states(self) -> dict[str, float]:
        """Return how long the states that are open have lasted, by the process's own clock at its last batch."""
        found: dict[str, float] = {}
        for span in self.open.values():
            if _is_state(span.segment, span.name):
                found[span.name] = found.get(span.name, 0.0) + max(self.sent_ns - span.start_ns, 0) / _SECOND
        return found

    def report(self, gauges: _Gauges, now_ns: int) -> None:
        source = self.source
        seen = gauges.families["process_last_seen_timestamp_seconds"]
        gauges.highest(seen, _labels(source, (("host", self.host),)), self.received_ns / _SECOND)
        if self.step is not None:
            gauges.highest(gauges.families["current_step"], _labels(source, ()), self.step)
            stamps = gauges.families["last_step_timestamp_seconds"]
            gauges.highest(stamps, _labels(source, ()), self.step_ns / _SECOND)
        if self.pending:
            sessions, labels = gauges.families["open_sessions"], _labels(source, ())
            sessions[labels] = sessions.get(labels, 0) + len(self.pending)
        silence_ns = max(now_ns - self.received_ns, 0)
        for span in self.open.values():
            age_s = (max(self.sent_ns - span.start_ns, 0) + silence_ns) / _SECOND
            gauges.open_span(source, span, age_s)


class _Gauges:
    """What is gathered from all processes at one moment."""

    def __init__(self) -> None:
        names = [name for name, (kind, _) in _FAMILIES.items() if kind == "gauge"]
        self.families: dict[str, dict[LabelItems, float]] = {name: {} for name in names}

    @staticmethod
    def highest(family: dict[LabelItems, float], labels: LabelItems, value: float) -> None:
        family[labels] = max(family.get(labels, value), value)

    def open_span(self, source: Source, span: _OpenSpan, age_s: float) -> None:
        names = (("span_name", span.name),)
        counts, oldest = self.families["open_spans"], self.families["open_span_oldest_seconds"]
        labels = _labels(source, names)
        if labels not in counts and len(counts) >= _MAX_OPEN_SERIES:
            labels = _labels(*_OVERFLOW_KEY)
        counts[labels] = counts.get(labels, 0) + 1
        self.highest(oldest, labels, age_s)


def _is_state(segment: str, name: str) -> bool:
    """Tell whether a span is what a lane does: a state, or a phase other than the one that holds the others."""
    return segment == STATE_SEGMENT or (segment == PHASE_SEGMENT and name != EXECUTION)


def _largest(column: memoryview) -> int:
    return max(column, default=NO_STEP)


def _labels(source: Source, labels: LabelItems) -> LabelItems:
    """Return the labels of a series, those that are empty left out."""
    run = source.run
    own = (
        ("experiment_name", run.experiment_name),
        ("project", run.project),
        ("rank", source.rank),
        ("role", source.role),
        ("run_id", run.run_id),
    )
    return tuple(pair for pair in (*own, *labels) if pair[1])
