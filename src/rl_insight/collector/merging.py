"""The merged state of metrics and series, and what each process has contributed to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from rl_insight.collector.run_activity import RunKey
from rl_insight.metrics import Distribution, Family, LabelItems, MetricKind, Point


class MergedFamily:
    """One metric with its series."""

    __slots__ = ("codes", "documentation", "kind", "name", "series")

    def __init__(self, name: str, kind: MetricKind) -> None:
        self.name = name
        self.kind = kind
        self.documentation = ""
        self.series: dict[LabelItems, MergedSeries] = {}
        self.codes: set[int] = set()

    def copy(self, series: Iterable[MergedSeries] = (), points: list[Point] | None = None) -> Family:
        """Return the metric with the current points of some of its series, or with these points."""
        if points is None:
            points = [one.point() for one in series if one.time_ns is not None]
        documentation = self.documentation or f"{self.kind.name.capitalize()} {self.name}"
        return Family(self.name, self.kind, documentation, points, codes=sorted(self.codes))


class MergedSeries:
    """The merged state of a series; `value` is also a distribution's sum."""

    __slots__ = ("buckets", "count", "family", "labels", "maximum", "minimum", "run", "time_ns", "value")

    def __init__(self, family: MergedFamily, run: RunKey, labels: LabelItems) -> None:
        self.family = family
        self.run = run
        self.labels = labels
        self.value = 0.0
        self.time_ns = 0 if family.kind.is_cumulative else None
        """When a gauge was last set."""
        self.count = 0
        self.minimum = inf
        self.maximum = -inf
        self.buckets: dict[int, int] = {}

    def set_value(self, value: float, time_ns: int) -> None:
        """Set a gauge, unless a later value is known."""
        if self.time_ns is None or time_ns >= self.time_ns:
            self.value, self.time_ns = value, time_ns

    def point(self) -> Point:
        """Return the series as it is now."""
        if not self.family.kind.is_distribution:
            return Point(self.labels, self.value, self.time_ns or 0)
        value = Distribution(self.count, self.value, self.buckets.copy(), self.minimum, self.maximum)
        return Point(self.labels, value)


class Contributor:
    """What is kept about one live process."""

    __slots__ = ("parts", "returning", "run")

    def __init__(self, run: RunKey, *, returning: bool) -> None:
        self.run = run
        self.returning = returning
        self.parts: dict[tuple[str, str, str], Contribution | str] = {}

    def forget_refusals(self) -> None:
        """Let what was refused try again: there may be room for it, or its name may be free."""
        self.parts = {key: part for key, part in self.parts.items() if not isinstance(part, str)}


class Contribution:
    """One process's part of one series: the totals that have been added to it so far."""

    __slots__ = ("buckets", "count", "is_baseline", "series", "total")

    def __init__(self, series: MergedSeries, *, returning: bool) -> None:
        self.series = series
        self.total = 0.0
        self.count = 0
        self.buckets: Mapping[int, int] = {}
        self.is_baseline = returning

    def add_total(self, total: float) -> None:
        """Add what is new in a counter's total."""
        if total <= self.total:
            return
        if not self.is_baseline:
            self.series.value += total - self.total
        self.is_baseline = False
        self.total = total

    def add_distribution(self, new: Distribution) -> None:
        """Add what is new in a histogram's totals."""
        if new.count <= self.count:
            return
        if not self.is_baseline:
            self._add_difference(new)
            self.series.minimum = min(self.series.minimum, new.minimum)
            self.series.maximum = max(self.series.maximum, new.maximum)
        self.is_baseline = False
        self.count, self.total, self.buckets = new.count, new.sum, new.buckets

    def _add_difference(self, new: Distribution) -> None:
        series, codes, known = self.series, self.series.family.codes, self.buckets
        series.count += new.count - self.count
        if new.sum != self.total:  # also where both are the same infinity, whose difference is not a number
            series.value += new.sum - self.total
        for code, number in new.buckets.items():
            more = number - known.get(code, 0)
            if more > 0:
                series.buckets[code] = series.buckets.get(code, 0) + more
                codes.add(code)
