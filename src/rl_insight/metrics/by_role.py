"""Metrics without the series of single ranks: what a page of thousands of processes shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from rl_insight.metrics.families import Distribution, Exemplar, Family, LabelItems, Point

PLACE_LABELS: Final = frozenset({"rank", "host", "gpu"})
"""The labels that tell one process or device from its peers."""


def by_role(families: Iterable[Family]) -> list[Family]:
    """Return metrics with one series where there was one for each rank, host and GPU.

    Counters and histograms are summed; a gauge says how it is put together, see `Family.across`.
    """
    return [_merged(family) for family in families]


def _merged(family: Family) -> Family:
    groups: dict[LabelItems, list[Point]] = {}
    for point in family.points:
        labels = tuple(pair for pair in point.labels if pair[0] not in PLACE_LABELS)
        groups.setdefault(labels, []).append(point)
    if len(groups) == len(family.points):
        return family
    points = [points[0] if len(points) == 1 else _sum(family, labels, points) for labels, points in groups.items()]
    return msgspec.structs.replace(family, points=points)


def _sum(family: Family, labels: LabelItems, points: list[Point]) -> Point:
    time_ns = max(point.time_ns for point in points)
    if family.kind.is_distribution:
        return Point(labels, _sum_distributions([one.value for one in points if isinstance(one.value, Distribution)]))
    values = [point.value for point in points if not isinstance(point.value, Distribution)]
    if family.kind.is_cumulative or family.across == "sum":
        return Point(labels, sum(values), time_ns)
    return Point(labels, max(values) if family.across == "max" else sum(values) / len(values), time_ns)


def _sum_distributions(parts: list[Distribution]) -> Distribution:
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
