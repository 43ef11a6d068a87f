"""The state of derived metrics: bounded tables of totals and distributions, and what is tracked per process."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import add
from typing import Generic, NamedTuple, TypeVar

import msgspec

from rl_insight.collector.derived import declarations
from rl_insight.collector.derived.declarations import DURATION_BOUNDS
from rl_insight.collector.run_activity import RunKey
from rl_insight.metrics import Declaration, Distribution, Exemplar, Family, LabelItems
from rl_insight.schema import NO_STEP, Batch
from rl_insight.schema.names import OVERFLOW_LABEL, PHASE_SEGMENT, STATE_SEGMENT
from rl_insight.schema.tables import largest
from rl_insight.sessions.model import EXECUTION, PENDING

SECOND = 1_000_000_000
_BOUNDS_NS = [int(bound * SECOND) for bound in DURATION_BOUNDS]

_EXEMPLAR_STEP_NS = 2_000_000

_MAX_OPEN_SERIES = 5_000
_MAX_ENDED_SESSIONS = 10_000


class ProcessGroup(NamedTuple):
    """Processes counted together: one role and rank in a run."""

    run: RunKey
    role: str
    rank: str

    @property
    def of_role(self) -> ProcessGroup:
        """All processes of the role."""
        return ProcessGroup(self.run, self.role, "")


_Entry = TypeVar("_Entry")
SeriesKey = tuple[ProcessGroup, LabelItems]
OVERFLOW_KEY: SeriesKey = (ProcessGroup(RunKey("", "", ""), OVERFLOW_LABEL, ""), ())


class BoundedSeries(Generic[_Entry]):
    """The series of one metric; past `limit`, everything new shares one series.

    Args:
        new_entry: makes the value of a new series.
        limit: the number of separate series.
    """

    def __init__(self, new_entry: Callable[[], _Entry], limit: int) -> None:
        self.entries: dict[SeriesKey, _Entry] = {}
        self.overflow = 0
        self._new_entry = new_entry
        self._limit = limit

    def entry(self, source: ProcessGroup, labels: LabelItems, count: int = 1) -> _Entry:
        """Return the series that `count` spans belong to: the overflow series if there is no room for another."""
        key = self.key(source, labels, count)
        found = self.entries.get(key)
        if found is None:
            found = self.entries[key] = self._new_entry()
        return found

    def key(self, source: ProcessGroup, labels: LabelItems, count: int) -> SeriesKey:
        """Return the key of the series that `count` spans belong to."""
        key = (source, labels)
        if key in self.entries or len(self.entries) < self._limit:
            return key
        self.overflow += count
        return OVERFLOW_KEY

    def drop_run(self, run: RunKey) -> None:
        """Remove every series of a run."""
        for key in [key for key in self.entries if key[0].run == run]:
            del self.entries[key]


class Total(msgspec.Struct, eq=False):
    """The value of a counter's series."""

    value: float = 0.0


def totals(series: BoundedSeries[Total], *, by_role: bool) -> dict[SeriesKey, float]:
    """Return the value of every series, or of each role's series together."""
    if not by_role:
        return {key: total.value for key, total in series.entries.items()}
    found: dict[SeriesKey, float] = {}
    for (source, labels), total in series.entries.items():
        key = (source.of_role, labels)
        found[key] = found.get(key, 0.0) + total.value
    return found


Traces = tuple[Sequence[int], Sequence[int]]
"""The high and the low halves of the trace ids of a batch."""


class SpanGroup:
    """Completed spans of one name, segment and status in one batch, in columns of equal length.

    Args:
        durations: in nanoseconds.
        starts: start times.
        traces: the trace ids of all spans in the batch; only a few are needed.
        places: the rows in the batch; None for all of it.
    """

    __slots__ = ("buckets", "count", "latest", "total_ns")

    def __init__(
        self, durations: Sequence[int], starts: Sequence[int], traces: Traces, places: Sequence[int] | None = None
    ) -> None:
        self.count = len(durations)
        self.total_ns = sum(durations)
        ends = list(map(add, durations, starts))
        lowest, highest = bisect_left(_BOUNDS_NS, min(durations)), bisect_left(_BOUNDS_NS, max(durations))
        last_rows: dict[int, int] = {}
        """By bucket: the row that ended last, used as the exemplar."""
        if lowest == highest:  # the usual case for short spans
            self.buckets: Mapping[int, int] = {lowest: self.count}
            last = max(ends)
            last_rows[lowest] = self.count - 1 - ends[::-1].index(last)
        else:
            rows = [bisect_left(_BOUNDS_NS, duration) for duration in durations]
            self.buckets = Counter(rows)
            for row, bucket in enumerate(rows):
                known = last_rows.get(bucket)
                if known is None or ends[known] <= ends[row]:
                    last_rows[bucket] = row
        self.latest: dict[int, tuple[int, int, int, int]] = {}
        for bucket, row in last_rows.items():
            place = row if places is None else places[row]
            self.latest[bucket] = (durations[row], traces[0][place], traces[1][place], ends[row])
        """By bucket: duration, high and low half of the trace id, and end."""


class GrowingDistribution(msgspec.Struct, eq=False):
    """A distribution of durations that is still growing."""

    count: int = 0
    seconds: float = 0.0
    buckets: dict[int, int] = {}
    exemplars: dict[int, Exemplar] = {}

    def merge(self, group: SpanGroup) -> None:
        """Add the spans of a group."""
        self.count += group.count
        self.seconds += group.total_ns / SECOND
        for bucket, count in group.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        for bucket, (duration_ns, high, low, end_ns) in group.latest.items():
            known = self.exemplars.get(bucket)
            # Batches of several processes arrive in any order, and receivers reject exemplars that go back in time or
            # share a millisecond, regardless of rounding.
            if (high or low) and (known is None or known.time_ns + _EXEMPLAR_STEP_NS <= end_ns):
                self.exemplars[bucket] = Exemplar(f"{high:016x}{low:016x}", duration_ns / SECOND, end_ns)

    def copy(self) -> Distribution:
        """Return the current distribution."""
        return Distribution(self.count, self.seconds, self.buckets.copy(), exemplars=self.exemplars.copy())


def labeled(declared: Declaration, series: Mapping[SeriesKey, float]) -> Family:
    """Return a counter or a gauge with its series."""
    return declared.family((labels_of(*key), value) for key, value in series.items())


def distributions(declared: Declaration, series: BoundedSeries[GrowingDistribution]) -> Family:
    """Return a histogram with a copy of every series."""
    return declared.family(((labels_of(*key), entry.copy()) for key, entry in series.entries.items()), DURATION_BOUNDS)


def labels_of(source: ProcessGroup, labels: LabelItems) -> LabelItems:
    """Return the labels of a series, without empty ones."""
    run = source.run
    own = (
        ("experiment_name", run.experiment_name),
        ("project", run.project),
        ("rank", source.rank),
        ("role", source.role),
        ("run_id", run.run_id),
    )
    return tuple(pair for pair in (*own, *labels) if pair[1])


class OpenSpan(NamedTuple):
    """A span that has started but not ended."""

    name: str
    segment: str
    start_ns: int


class SpanCounts(NamedTuple):
    """The series for spans of one process, name, segment and status."""

    spans: Total
    seconds: tuple[Total, ...]
    distributions: tuple[GrowingDistribution, ...]

    def add(self, group: SpanGroup) -> None:
        """Add spans."""
        self.spans.value += group.count
        for total in self.seconds:
            total.value += group.total_ns / SECOND
        for distribution in self.distributions:
            distribution.merge(group)


class TrackedProcess(msgspec.Struct, eq=False):
    """The state of one process."""

    source: ProcessGroup
    of_role: ProcessGroup
    host: str
    series: dict[tuple[str, str, str], SpanCounts] = {}
    """Where its spans are counted, by name, segment and status."""
    sequence: int = 0
    sent_ns: int = 0
    received_ns: int = 0
    step: int | None = None
    step_ns: int = 0
    open: dict[int, OpenSpan] = {}
    pending: set[str] = set()
    """Open sessions."""
    ended: OrderedDict[str, None] = msgspec.field(default_factory=OrderedDict)
    """Recently ended sessions: further snapshots of them are ignored."""

    def note(self, batch: Batch, now_ns: int) -> None:
        """Record the arrival and the step of a batch."""
        self.sent_ns = max(self.sent_ns, batch.sent_ns)
        self.received_ns = now_ns
        step = largest(batch.spans.step + batch.samples.step)
        if step != NO_STEP and (self.step is None or step > self.step):
            self.step, self.step_ns = step, now_ns

    def ended_sessions(self, batch: Batch) -> Iterator[str]:
        """Track the sessions of a batch; yield the status of each newly ended one."""
        if not batch.sessions.session_id:
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
        """Return the time in open states, on the process's clock as of its last batch."""
        found: dict[str, float] = {}
        for span in self.open.values():
            if is_state(span.segment, span.name):
                found[span.name] = found.get(span.name, 0.0) + max(self.sent_ns - span.start_ns, 0) / SECOND
        return found

    def report(self, gauges: Gauges, now_ns: int, *, by_role: bool = False) -> None:
        """Add the process to the gauges, or to those of its role."""
        source = self.of_role if by_role else self.source
        labels = source, ()
        seen = labels if by_role else (source, (("host", self.host),))
        gauges.highest(declarations.PROCESS_LAST_SEEN_TIMESTAMP_SECONDS, seen, self.received_ns / SECOND)
        if self.step is not None:
            gauges.highest(declarations.CURRENT_STEP, labels, self.step)
            gauges.highest(declarations.LAST_STEP_TIMESTAMP_SECONDS, labels, self.step_ns / SECOND)
        if self.pending:
            gauges.add(declarations.OPEN_SESSIONS, labels, len(self.pending))
        silence_ns = max(now_ns - self.received_ns, 0)
        for span in self.open.values():
            age_s = (max(self.sent_ns - span.start_ns, 0) + silence_ns) / SECOND
            gauges.open_span(source, span, age_s)


class Gauges:
    """Gauges collected from all processes."""

    def __init__(self) -> None:
        self._values: dict[Declaration, dict[SeriesKey, float]] = {}

    def highest(self, declared: Declaration, key: SeriesKey, value: float) -> None:
        """Raise a series to a value."""
        series = self._values.setdefault(declared, {})
        series[key] = max(series.get(key, value), value)

    def add(self, declared: Declaration, key: SeriesKey, amount: float) -> None:
        """Add to a series."""
        series = self._values.setdefault(declared, {})
        series[key] = series.get(key, 0) + amount

    def open_span(self, source: ProcessGroup, span: OpenSpan, age_s: float) -> None:
        """Count an open span of this age."""
        counts = self._values.setdefault(declarations.OPEN_SPANS, {})
        key: SeriesKey = (source, (("span_name", span.name),))
        if key not in counts and len(counts) >= _MAX_OPEN_SERIES:
            key = OVERFLOW_KEY
        self.add(declarations.OPEN_SPANS, key, 1)
        self.highest(declarations.OPEN_SPAN_OLDEST_SECONDS, key, age_s)

    def families(self) -> list[Family]:
        """Return the gauges."""
        return [labeled(declared, series) for declared, series in self._values.items()]


def is_state(segment: str, name: str) -> bool:
    """Return whether a span counts as a state: a state, or a phase other than the enclosing `execution`."""
    return segment == STATE_SEGMENT or (segment == PHASE_SEGMENT and name != EXECUTION)
