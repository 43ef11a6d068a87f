"""The tables behind derived metrics: totals and distributions by source and labels, bounded in number."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from rl_insight.collector.derived_families import DURATION_BOUNDS, Durations, Exemplar
from rl_insight.collector.series import LabelItems, Run
from rl_insight.schema.names import OVERFLOW_LABEL

SECOND = 1_000_000_000
_BOUNDS_NS = [int(bound * SECOND) for bound in DURATION_BOUNDS]


class Source(NamedTuple):
    """Processes that are counted together: those of one role and rank in a run."""

    run: Run
    role: str
    rank: str


_Entry = TypeVar("_Entry")
_Key = tuple[Source, LabelItems]
OVERFLOW_KEY: _Key = (Source(Run("", "", ""), OVERFLOW_LABEL, ""), ())


class Table(Generic[_Entry]):
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
        return OVERFLOW_KEY

    def items(self) -> Iterator[tuple[LabelItems, _Entry]]:
        """Yield every series with its labels."""
        return ((labels_of(*key), entry) for key, entry in self.entries.items())

    def drop_run(self, run: Run) -> None:
        """Remove every series of a run."""
        for key in [key for key in self.entries if key[0].run == run]:
            del self.entries[key]


class Totals(Table[float]):
    """The series of a counter."""

    def add(self, source: Source, labels: LabelItems, amount: float, count: int = 1) -> None:
        """Add an amount that `count` spans make up."""
        key = self.key(source, labels, count)
        self.entries[key] = self.entries.get(key, 0.0) + amount


class SpanGroup:
    """Completed spans of one name, segment and status in one batch."""

    __slots__ = ("buckets", "count", "exemplars", "total_ns")

    def __init__(self) -> None:
        self.count = 0
        self.total_ns = 0
        self.buckets: dict[int, int] = {}
        self.exemplars: dict[int, tuple[int, int, int, int]] = {}

    def add(self, duration_ns: int, high: int, low: int, start_ns: int) -> None:
        """Count one span; the last of each bucket stands for it."""
        self.count += 1
        self.total_ns += duration_ns
        bucket = bisect_left(_BOUNDS_NS, duration_ns)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.exemplars[bucket] = (high, low, duration_ns, start_ns)


class GrowingDurations:
    """A distribution in the making."""

    __slots__ = ("counts", "exemplars", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_NS) + 1)
        self.seconds = 0.0
        self.exemplars: dict[int, Exemplar] = {}

    def merge(self, group: SpanGroup) -> None:
        """Add the spans of a group."""
        self.seconds += group.total_ns / SECOND
        for bucket, count in group.buckets.items():
            self.counts[bucket] += count
        for bucket, (high, low, duration_ns, start_ns) in group.exemplars.items():
            if high or low:
                trace_id = f"{high:016x}{low:016x}"
                self.exemplars[bucket] = Exemplar(trace_id, duration_ns / SECOND, start_ns + duration_ns)

    def copy(self) -> Durations:
        """Return the distribution as it is now."""
        return Durations(self.counts.copy(), self.seconds, self.exemplars.copy())


def labels_of(source: Source, labels: LabelItems) -> LabelItems:
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
