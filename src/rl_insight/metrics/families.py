"""Metrics with all their series at one point in time, from any source."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from rl_insight.metrics.kinds import GAUGE, KINDS, MetricKind
from rl_insight.schema import Batch
from rl_insight.schema.histogram import lower_bound, upper_bound
from rl_insight.schema.records import read_labels

LabelItems = tuple[tuple[str, str], ...]
"""Label names with their values."""

Across = Literal["sum", "max", "mean"]

_JUST_BELOW_ZERO = -sys.float_info.min


class Exemplar(NamedTuple):
    """One observation of a bucket, with its trace."""

    trace_id: str
    value: float
    time_ns: int


class Distribution(msgspec.Struct, frozen=True):
    """The observations of a histogram series."""

    count: int
    sum: float
    buckets: Mapping[int, int]
    """Counts by bucket; `Family.bounds` defines the keys."""
    minimum: float = inf
    maximum: float = -inf
    """The extremes; minimum > maximum if they are unknown."""
    exemplars: Mapping[int, Exemplar] = {}
    """By bucket."""

    @property
    def total_count(self) -> int:
        """The count, or the sum of the buckets if an inconsistent sender has a smaller count."""
        return max(self.count, sum(self.buckets.values()))


class Point(NamedTuple):
    """One series at one point in time."""

    labels: LabelItems
    value: float | Distribution
    time_ns: int = 0
    """When the value was set; 0 for the time at which the family was read."""


class Family(msgspec.Struct, frozen=True):
    """All series of one metric at one point in time.

    >>> from rl_insight.metrics import COUNTER
    >>> Family("steps", COUNTER, "Training steps.", [Point((), 7.0)]).exposed_name("rl")
    'rl_steps_total'
    """

    name: str
    """Without the namespace and the suffix of its kind."""
    kind: MetricKind
    documentation: str
    points: list[Point]
    bounds: tuple[float, ...] | None = None
    """Upper bounds of the buckets, whose keys are positions in this tuple plus one for larger values.
    None: the keys are codes of `rl_insight.schema.histogram`."""
    codes: Sequence[int] = ()
    """Without `bounds`: all codes used by a series of the metric, ascending."""
    across: Across = "mean"
    """How the gauges of several ranks are combined."""

    def exposed_name(self, namespace: str = "") -> str:
        """Return the name that Prometheus sees."""
        return self.kind.exposed_name(namespace, self.name)

    def cumulative_bounds(self) -> list[tuple[float, list[int]]]:
        """Return the finite bounds to expose, ascending, each with its buckets."""
        if self.bounds is not None:
            return [(bound, [position]) for position, bound in enumerate(self.bounds)]
        return _code_bounds(self.codes)


class Declaration(msgspec.Struct, frozen=True):
    """A metric that RL-Insight itself exposes; the single definition of its name, kind and documentation."""

    name: str
    """Without the namespace and the suffix of its kind."""
    kind: MetricKind
    documentation: str
    across: Across = "mean"
    """How the gauges of several ranks are combined."""

    def family(
        self, points: Iterable[tuple[LabelItems, float | Distribution]], bounds: tuple[float, ...] | None = None
    ) -> Family:
        """Return the metric with values; `bounds` are the bounds of its buckets."""
        found = [Point(labels, value) for labels, value in points]
        return Family(self.name, self.kind, self.documentation, found, bounds, across=self.across)


Subject = TypeVar("Subject")
Values = Iterable[tuple[LabelItems, float]]
MetricReading = tuple[Declaration, Callable[[Subject], Values]]
"""A declared metric, and how to read its series."""


class Readings(Generic[Subject]):
    """The metrics of one kind of object.

    >>> from rl_insight.metrics import GAUGE
    >>> readings: Readings[list[int]] = Readings(single("length", GAUGE, "Number of items.", len))
    >>> readings.families([7, 8])[0].points[0].value
    2
    """

    def __init__(self, *readings: MetricReading[Subject]) -> None:
        self._readings = readings
        self.declarations = tuple(declaration for declaration, _ in readings)

    def families(self, subject: Subject) -> list[Family]:
        """Return the current metrics."""
        return [declaration.family(read(subject)) for declaration, read in self._readings]


def several(
    name: str,
    kind: MetricKind,
    documentation: str,
    read: Callable[[Subject], Values],
    across: Across = "mean",
) -> MetricReading[Subject]:
    """Declare a metric with any labels; `across` defines how the gauges of several ranks are combined."""
    return Declaration(name, kind, documentation, across), read


def single(name: str, kind: MetricKind, documentation: str, read: Callable[[Subject], float]) -> MetricReading[Subject]:
    """Declare a metric with one series that has no labels."""
    return several(name, kind, documentation, lambda subject: [((), read(subject))])


def by(
    label: str, name: str, kind: MetricKind, documentation: str, read: Callable[[Subject], Iterable[tuple[str, float]]]
) -> MetricReading[Subject]:
    """Declare a metric with one label."""
    return several(
        name, kind, documentation, lambda subject: [(((label, key),), value) for key, value in read(subject)]
    )


def reserved_names(declarations: Iterable[Declaration]) -> frozenset[str]:
    """Return every exposed name, without the namespace, that recorded metrics cannot use."""
    return frozenset(name for declared in declarations for name in declared.kind.exposed_names(declared.name))


def batch_families(batch: Batch) -> list[Family]:
    """Return the metrics in one batch as its process reported them: not merged, with a timestamp per point.

    Rows whose kind is unknown or does not fit the table, and NaN counters, are left out.
    """
    text = batch.text
    columns = [batch.series.column(name) for name in ("name", "kind", "labels", "documentation")]
    families: dict[tuple[str, str], Family] = {}
    places: list[tuple[Family, LabelItems]] = []
    unknown = Family("", GAUGE, "", [])
    for name_at, kind_at, labels_at, documentation_at in zip(*columns, strict=True):
        name, kind = text(name_at) or "", KINDS.get(text(kind_at) or "")
        if kind is None:
            places.append((unknown, ()))
            continue
        family = families.get((name, kind.name))
        if family is None:
            family = families[name, kind.name] = Family(name, kind, text(documentation_at) or "", [])
        places.append((family, _labels(text(labels_at) or "")))
    samples = batch.samples
    rows = zip(samples.column("series"), samples.column("time_ns"), samples.column("value"), strict=True)
    for position, time_ns, value in rows:
        family, labels = places[position]
        is_number = value == value  # noqa: PLR0124 -- the fastest test for NaN
        if not family.kind.is_distribution and (is_number or not family.kind.is_cumulative):
            family.points.append(Point(labels, value, time_ns))
    for position, time_ns, distribution in batch_distributions(batch):
        family, labels = places[position]
        if family.kind.is_distribution:
            family.points.append(Point(labels, distribution, time_ns))
    return [family for family in families.values() if family.points]


def batch_distributions(batch: Batch) -> Iterator[tuple[int, int, Distribution]]:
    """Yield the histograms of a batch: series position, time and value."""
    names = ("series", "time_ns", "count", "sum", "min", "max", "buckets")
    codes, counts = batch.buckets.column("code").tolist(), batch.buckets.column("count").tolist()
    start = 0
    rows = zip(*map(batch.histograms.column, names), strict=True)
    for position, time_ns, count, total, minimum, maximum, length in rows:
        end = start + length
        buckets = dict(zip(codes[start:end], counts[start:end], strict=True))
        yield position, time_ns, Distribution(count, total, buckets, minimum, maximum)
        start = end


def _labels(text: str) -> LabelItems:
    return tuple(read_labels(text).items())


def _code_bounds(codes: Iterable[int]) -> list[tuple[float, list[int]]]:
    """Return the bounds to expose for ascending bucket codes, each with its codes.

    Below each run of adjacent buckets, one empty bound is added: without it, interpolation would spread the first
    bucket of the run over the gap below.
    """
    bounds: list[tuple[float, list[int]]] = []
    for code in codes:
        below = lower_bound(code) if code else _JUST_BELOW_ZERO
        above = upper_bound(code)
        if below > -inf and (code or bounds) and (not bounds or bounds[-1][0] < below):
            bounds.append((below, []))
        if above == inf:
            continue
        if bounds and bounds[-1][0] >= above:
            # Near zero, several buckets share a bound.
            bounds[-1][1].append(code)
        else:
            bounds.append((above, [code]))
    return bounds
