"""Metrics aggregated over ranks, for a page with thousands of processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from rl_insight.metrics.families import Across, Distribution, Exemplar, Family, LabelItems, Point
from rl_insight.metrics.kinds import MetricKind

PLACE_LABELS: Final = frozenset({"rank", "host", "gpu", "process_id"})
"""Labels that distinguish a process or device from its peers."""


def labels_of_role(labels: LabelItems) -> LabelItems:
    """Return labels without those of a single process or device."""
    return tuple(pair for pair in labels if pair[0] not in PLACE_LABELS)


def by_role(families: Iterable[Family]) -> list[Family]:
    """Return metrics with one series per role instead of one per rank, host and GPU.

    Counters and histograms are summed; `Family.across` defines how gauges are combined.
    """
    return [_merged(family) for family in families]


def _merged(family: Family) -> Family:
    groups: dict[LabelItems, list[Point]] = {}
    for point in family.points:
        groups.setdefault(labels_of_role(point.labels), []).append(point)
    if len(groups) == len(family.points):
        return family
    points = [points[0] if len(points) == 1 else _sum(family, labels, points) for labels, points in groups.items()]
    return msgspec.structs.replace(family, points=points)


def _sum(family: Family, labels: LabelItems, points: list[Point]) -> Point:
    if family.kind.is_distribution:
        return Point(labels, sum_distributions([one.value for one in points if isinstance(one.value, Distribution)]))
    values = [point.value for point in points if not isinstance(point.value, Distribution)]
    return Point(labels, combined(family.kind, family.across, values), max(point.time_ns for point in points))


def combined(kind: MetricKind, across: Across, values: list[float]) -> float:
    """Combine the values of the ranks of a role."""
    if kind.is_cumulative or across == "sum":
        return sum(values)
    return max(values) if across == "max" else sum(values) / len(values)


def sum_distributions(parts: list[Distribution]) -> Distribution:
    """Combine the distributions of the ranks of a role."""
    buckets: dict[int, int] = {}
    exemplars: dict[int, Exemplar] = {}
    for part in parts:
        for bucket, count in part.buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + count
        for bucket, exemplar in part.exemplars.items():
            if bucket not in exemplars or exemplars[bucket].time_ns < exemplar.time_ns:
                exemplars[bucket] = exemplar
    return Distribution(
        sum(part.count for part in parts),
        sum(part.sum for part in parts),
        buckets,
        min(part.minimum for part in parts),
        max(part.maximum for part in parts),
        exemplars,
    )
