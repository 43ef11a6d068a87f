"""The tables behind derived metrics: totals and distributions by source and labels, bounded in number."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Generic, NamedTuple, TypeVar

from rl_insight.collector.derived.declarations import DURATION_BOUNDS
from rl_insight.collector.run_activity import RunKey
from rl_insight.metrics import Declaration, Distribution, Exemplar, Family, LabelItems, Point
from rl_insight.schema.names import OVERFLOW_LABEL

SECOND = 1_000_000_000
_BOUNDS_NS = [int(bound * SECOND) for bound in DURATION_BOUNDS]


class ProcessGroup(NamedTuple):
    """Processes that are counted together: those of one role and rank in a run."""

    run: RunKey
    role: str
    rank: str


_Entry = TypeVar("_Entry")
_Key = tuple[ProcessGroup, LabelItems]
OVERFLOW_KEY: _Key = (ProcessGroup(RunKey("", "", ""), OVERFLOW_LABEL, ""), ())


class BoundedSeries(Generic[_Entry]):
    """The series of one metric; past `limit` everything new shares one series."""

    def __init__(self, limit: int) -> None:
        self.entries: dict[_Key, _Entry] = {}
        self.overflow = 0
        self._limit = limit

    def key(self, source: ProcessGroup, labels: LabelItems, count: int) -> _Key:
        """Return the key to file `count` spans under."""
        key = (source, labels)
        if key in self.entries or len(self.entries) < self._limit:
            return key
        self.overflow += count
        return OVERFLOW_KEY

    def items(self) -> Iterator[tuple[LabelItems, _Entry]]:
        """Yield every series with its labels."""
        return ((labels_of(*key), entry) for key, entry in self.entries.items())

    def drop_run(self, run: RunKey) -> None:
        """Remove every series of a run."""
        for key in [key for key in self.entries if key[0].run == run]:
            del self.entries[key]


class Totals(BoundedSeries[float]):
    """The series of a counter."""

    def add(self, source: ProcessGroup, labels: LabelItems, amount: float, count: int = 1) -> None:
        """Add an amount that `count` spans make up."""
        key = self.key(source, labels, count)
        self.entries[key] = self.entries.get(key, 0.0) + amount


EndedSpan = tuple[int, int, int, int]
"""What counts of a completed span: its duration, the high and the low half of its trace id, and its start."""


def _end_ns(span: EndedSpan) -> int:
    return span[0] + span[3]


class SpanGroup:
    """Completed spans of one name, segment and status in one batch."""

    __slots__ = ("buckets", "count", "latest", "total_ns")

    def __init__(self, spans: Sequence[EndedSpan]) -> None:
        spans = sorted(spans, key=_end_ns)
        durations = [span[0] for span in spans]
        places = list(map(bisect_left, repeat(_BOUNDS_NS), durations))
        self.count = len(spans)
        self.total_ns = sum(durations)
        self.buckets: Mapping[int, int] = Counter(places)
        self.latest = dict(zip(places, spans, strict=True))
        """The span of each bucket that ended last, its exemplar."""


class GrowingDistribution:
    """Durations that are still being added up."""

    __slots__ = ("buckets", "count", "exemplars", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.buckets: dict[int, int] = {}
        self.exemplars: dict[int, Exemplar] = {}

    def merge(self, group: SpanGroup) -> None:
        """Add the spans of a group."""
        self.count += group.count
        self.seconds += group.total_ns / SECOND
        for bucket, count in group.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        for bucket, (duration_ns, high, low, start_ns) in group.latest.items():
            known, end_ns = self.exemplars.get(bucket), start_ns + duration_ns
            # Batches of several processes arrive in any order, and receivers refuse an exemplar that goes back in time.
            if (high or low) and (known is None or known.time_ns <= end_ns):
                self.exemplars[bucket] = Exemplar(f"{high:016x}{low:016x}", duration_ns / SECOND, end_ns)

    def copy(self) -> Distribution:
        """Return the distribution as it is now."""
        return Distribution(self.count, self.seconds, self.buckets.copy(), exemplars=self.exemplars.copy())


class Distributions(BoundedSeries[GrowingDistribution]):
    """The series of a histogram."""

    def add(self, source: ProcessGroup, labels: LabelItems, group: SpanGroup) -> None:
        """Add the spans of a group."""
        # Without the rank: a histogram has many lines, and `span_seconds` has the ranks.
        key = self.key(source._replace(rank=""), labels, group.count)
        self.entries.setdefault(key, GrowingDistribution()).merge(group)

    def family(self, declared: Declaration) -> Family:
        """Return the metric with a copy of every series."""
        points = [Point(labels, entry.copy()) for labels, entry in self.items()]
        return Family(declared.name, declared.kind, declared.documentation, points, bounds=DURATION_BOUNDS)


def labels_of(source: ProcessGroup, labels: LabelItems) -> LabelItems:
    """Return the labels of a series; empty ones are left out."""
    run = source.run
    own = (
        ("experiment_name", run.experiment_name),
        ("project", run.project),
        ("rank", source.rank),
        ("role", source.role),
        ("run_id", run.run_id),
    )
    return tuple(pair for pair in (*own, *labels) if pair[1])
