"""Bounded tables of totals and distributions for derived metrics, by process group and labels."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import add
from typing import Generic, NamedTuple, TypeVar

import msgspec

from rl_insight.collector.derived.declarations import DURATION_BOUNDS
from rl_insight.collector.run_activity import RunKey
from rl_insight.metrics import Declaration, Distribution, Exemplar, Family, LabelItems
from rl_insight.schema.names import OVERFLOW_LABEL

SECOND = 1_000_000_000
_BOUNDS_NS = [int(bound * SECOND) for bound in DURATION_BOUNDS]

_EXEMPLAR_STEP_NS = 2_000_000


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
    """Durations that are still being added up."""

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
        """Return the distribution as it is now."""
        return Distribution(self.count, self.seconds, self.buckets.copy(), exemplars=self.exemplars.copy())


def labelled(declared: Declaration, series: Mapping[SeriesKey, float]) -> Family:
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
