"""The merged state of metrics and series, and what each process has contributed to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from weakref import WeakValueDictionary

import msgspec

from rl_insight.collector.run_activity import RunKey
from rl_insight.metrics import Distribution, Family, LabelItems, MetricKind, Point
from rl_insight.metrics.by_role import combined, labels_of_role, sum_distributions

NO_BUCKETS: dict[int, int] = {}
"""Shared: most series are gauges and counters, and there may be 100,000 of them."""


class MergedFamily(msgspec.Struct, eq=False):
    """One metric with its series."""

    name: str
    kind: MetricKind
    documentation: str = ""
    series: dict[LabelItems, MergedSeries] = {}
    codes: set[int] = set()
    roles: WeakValueDictionary[LabelItems, RoleSeries] = msgspec.field(default_factory=WeakValueDictionary)

    def add_series(self, run: RunKey, labels: LabelItems) -> MergedSeries:
        """Add a series."""
        of_role = labels_of_role(labels)
        role = self.roles.get(of_role)
        if role is None:
            role = self.roles[of_role] = RoleSeries(of_role)
        time_ns = 0 if self.kind.is_cumulative else None
        buckets: dict[int, int] = {} if self.kind.is_distribution else NO_BUCKETS
        added = self.series[labels] = MergedSeries(self, run, labels, role, time_ns, buckets)
        return added

    def copy_by_role(self) -> Family:
        """Return the metric with one series per role; reads 100,000 series in 20 ms."""
        roles: dict[RoleSeries, list[MergedSeries]] = {}
        for one in self.series.values():
            if one.time_ns is not None:
                roles.setdefault(one.role, []).append(one)
        return self.copy(points=[self._role_point(role, series) for role, series in roles.items()])

    def _role_point(self, role: RoleSeries, series: list[MergedSeries]) -> Point:
        if len(series) == 1:
            return series[0].point()
        if self.kind.is_distribution:
            parts = [point.value for point in (one.point() for one in series) if isinstance(point.value, Distribution)]
            return Point(role.labels, sum_distributions(parts))
        value = combined(self.kind, "mean", [one.value for one in series])
        return Point(role.labels, value, max(one.time_ns or 0 for one in series))

    def copy(self, series: Iterable[MergedSeries] = (), points: list[Point] | None = None) -> Family:
        """Return the metric with the current points of some series, or with the given points."""
        if points is None:
            points = [one.point() for one in series if one.time_ns is not None]
        documentation = self.documentation or f"{self.kind.name.capitalize()} {self.name}"
        return Family(self.name, self.kind, documentation, points, codes=sorted(self.codes))


class RoleSeries(msgspec.Struct, eq=False, weakref=True):
    """The state that all series of a role share; compared by identity, which is fast."""

    labels: LabelItems


class MergedSeries(msgspec.Struct, eq=False):
    """The merged state of a series; `value` is also a distribution's sum."""

    family: MergedFamily
    run: RunKey
    labels: LabelItems
    role: RoleSeries
    time_ns: int | None
    """When a gauge was last set."""
    buckets: dict[int, int]
    value: float = 0.0
    count: int = 0
    minimum: float = inf
    maximum: float = -inf

    def set_value(self, value: float, time_ns: int) -> None:
        """Set a gauge unless it has a later value."""
        if self.time_ns is None or time_ns >= self.time_ns:
            self.value, self.time_ns = value, time_ns

    def point(self) -> Point:
        """Return the current value."""
        if not self.family.kind.is_distribution:
            return Point(self.labels, self.value, self.time_ns or 0)
        value = Distribution(self.count, self.value, self.buckets.copy(), self.minimum, self.maximum)
        return Point(self.labels, value)


class Contributor(msgspec.Struct, eq=False):
    """The state of one live process."""

    run: RunKey
    is_returning: bool
    """Whether it had been forgotten: its first totals are then already counted."""
    parts: dict[tuple[str, str, str], Contribution | str] = {}

    def forget_refusals(self) -> None:
        """Retry refused series: there may be room now, or the name may be free."""
        self.parts = {key: part for key, part in self.parts.items() if not isinstance(part, str)}


class Contribution(msgspec.Struct, eq=False):
    """One process's share of one series: the totals that have been added to it so far."""

    series: MergedSeries
    is_baseline: bool
    buckets: Mapping[int, int]
    total: float = 0.0
    count: int = 0

    def add_total(self, total: float) -> None:
        """Add the increase of a counter's total."""
        if total <= self.total:
            return
        if not self.is_baseline:
            self.series.value += total - self.total
        self.is_baseline = False
        self.total = total

    def add_distribution(self, new: Distribution) -> None:
        """Add the increase of a histogram's totals."""
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
        if new.sum != self.total:  # also skips equal infinities, whose difference is NaN
            series.value += new.sum - self.total
        for code, number in new.buckets.items():
            more = number - known.get(code, 0)
            if more > 0:
                series.buckets[code] = series.buckets.get(code, 0) + more
                codes.add(code)
