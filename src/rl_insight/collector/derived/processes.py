"""Per-process state of derived metrics: step, open spans, sessions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from rl_insight.collector.derived import declarations
from rl_insight.collector.derived.tables import (
    OVERFLOW_KEY,
    SECOND,
    GrowingDistribution,
    ProcessGroup,
    SeriesKey,
    SpanGroup,
    Total,
    labelled,
)
from rl_insight.collector.run_activity import run_of
from rl_insight.metrics import Declaration, Family
from rl_insight.schema import NO_STEP, Batch, Process
from rl_insight.schema.names import PHASE_SEGMENT
from rl_insight.schema.tables import largest
from rl_insight.sessions.model import EXECUTION, PENDING

STATE_SEGMENT = "state_interval"

_MAX_OPEN_SERIES = 5_000
_MAX_ENDED_SESSIONS = 10_000


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

    @classmethod
    def of(cls, process: Process) -> TrackedProcess:
        """Start tracking a process."""
        source = ProcessGroup(run_of(process), process.role, "" if process.rank is None else str(process.rank))
        return cls(source, source.of_role, process.host)

    def note(self, batch: Batch, now_ns: int) -> None:
        """Record the arrival and the step of a batch."""
        self.sent_ns = max(self.sent_ns, batch.sent_ns)
        self.received_ns = now_ns
        step = largest(batch.spans.step + batch.samples.step)
        if step != NO_STEP and (self.step is None or step > self.step):
            self.step, self.step_ns = step, now_ns

    def ended_sessions(self, batch: Batch) -> Iterator[str]:
        """Track the sessions of a batch; yields the status of each newly ended one."""
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
        return [labelled(declared, series) for declared, series in self._values.items()]


def is_state(segment: str, name: str) -> bool:
    """Return whether a span counts as a state: a state, or a phase other than the enclosing `execution`."""
    return segment == STATE_SEGMENT or (segment == PHASE_SEGMENT and name != EXECUTION)
