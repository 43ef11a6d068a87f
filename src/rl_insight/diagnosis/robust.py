"""Robust statistics, and intervals of time."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from statistics import median as median  # noqa: PLC0414  # one home for robust statistics
from typing import Any

import numpy as np

from rl_insight.store.queries.intervals import stable_order

Interval = tuple[int, int]
Column = np.ndarray[Any, Any]
_GROWTH = 1.05
_LOG_GROWTH = math.log(_GROWTH)
_SMALLEST_S = 1e-6


def mad(values: Sequence[float], center: float | None = None) -> float:
    """Return the median absolute deviation.

    >>> mad([1, 2, 3, 4, 100])
    1
    """
    middle = median(values) if center is None else center
    return median([abs(value - middle) for value in values])


def baseline(values: Collection[float], least: int = 10) -> float | None:
    """Return the median of values; None if there are fewer than `least`.

    >>> baseline([3, 1, 2], 3), baseline([1, 2])
    (2, None)
    """
    return median(values) if len(values) >= least else None


def medians_without(values: Column) -> Column:
    """Return for each of at least two values the median of the others.

    >>> medians_without(np.array([9, 1, 3, 2])).tolist(), medians_without(np.array([1, 2, 3])).tolist()
    ([2.0, 3.0, 2.0, 3.0], [2.5, 2.0, 1.5])
    """
    ordered = np.sort(values)
    places, count = np.searchsorted(ordered, values), values.size - 1
    low, high = (count - 1) // 2, count // 2
    pairs = ordered[low + (low >= places)], ordered[high + (high >= places)]
    return np.asarray((pairs[0] + pairs[1]) / 2)


def noise(values: Sequence[float]) -> float:
    """Return the standard deviation of values around their trend, by the differences of neighbors.

    >>> round(noise([1, 2, 3, 4, 5, 6]), 2), noise([1.0, 1.0, 1.0])
    (0.0, 0.0)
    """
    steps = [later - earlier for earlier, later in pairwise(values)]
    return 1.4826 * mad(steps) / math.sqrt(2) if steps else 0.0


def coarse_noise(values: Sequence[float]) -> float:
    """Return the noise of values of which many may be equal, such as means of a few samples.

    >>> values = [0.5, 0.5, 0.5, 1.0, 0.5, 0.5, 0.5, 0.5]
    >>> noise(values), round(coarse_noise(values), 2)
    (0.0, 0.11)
    """
    steps = [later - earlier for earlier, later in pairwise(values)]
    if not steps:
        return 0.0
    # Not the full standard deviation: a single jump must not hide the next ones.
    return max(noise(values), 0.6 * math.sqrt(sum(step * step for step in steps) / (2 * len(steps))))


def chance_of(count: int, expected: float) -> float:
    """Return the probability of at least `count` rare events if `expected` are expected.

    >>> chance_of(0, 1.0), round(chance_of(5, 1.0), 4)
    (1.0, 0.0037)
    """
    term, below = math.exp(-expected), 0.0
    for number in range(count):
        below += term
        term *= expected / (number + 1)
    return max(0.0, 1.0 - below)


def quantile(values: Collection[float], share: float) -> float:
    """Return a quantile of at least one value, interpolated between neighbors.

    >>> quantile([3, 1, 2], 0.75)
    2.5
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def theil_sen(values: Sequence[float]) -> float:
    """Return the median slope between all pairs of evenly spaced values.

    >>> theil_sen([0, 1, 2, 50, 4])
    1.0
    """
    slopes = [
        (values[later] - values[earlier]) / (later - earlier)
        for earlier in range(len(values))
        for later in range(earlier + 1, len(values))
    ]
    return median(slopes) if slopes else 0.0


def spearman(values: Sequence[float]) -> float:
    """Return the rank correlation of values with their order; 1 if they always rise.

    >>> spearman([1, 2, 5, 9]), spearman([3, 2, 1])
    (1.0, -1.0)
    """
    count = len(values)
    if count < 2:
        return 0.0
    order = sorted(range(count), key=values.__getitem__)
    distance = sum((place - rank) ** 2 for rank, place in enumerate(order))
    return 1.0 - 6.0 * distance / (count * (count * count - 1))


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return intervals without overlaps, in order.

    >>> union([(5, 8), (0, 3), (2, 4)])
    [(0, 4), (5, 8)]
    """
    merged: list[Interval] = []
    ordered = sorted(intervals)
    if len(ordered) < 2:
        return ordered
    for start, end in ordered:
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def length_s(intervals: Iterable[Interval]) -> float:
    """Return the seconds that intervals without overlaps cover."""
    return sum(end - start for start, end in intervals) / 1e9


def medians(keys: Column, values: Column) -> tuple[Column, Column]:
    """Return each key and the median of its values, by key.

    >>> [column.tolist() for column in medians(np.array([7, 3, 7, 7, 3]), np.array([9.0, 1.0, 2.0, 4.0, 2.0]))]
    [[3, 7], [1.5, 4.0]]
    """
    order = np.argsort(values)
    order = order[stable_order(keys[order])]
    values = values[order]
    found, firsts, counts = np.unique(keys[order], return_index=True, return_counts=True)
    return found, (values[firsts + (counts - 1) // 2] + values[firsts + counts // 2]) / 2


def merged(keys: Column, starts: Column, ends: Column) -> tuple[Column, Column, Column]:
    """Return the intervals of each key without overlaps, by key and start: keys, starts and ends.

    >>> keys, starts, ends = np.array([7, 8, 7, 7]), np.array([5, 0, 0, 2]), np.array([8, 1, 3, 4])
    >>> [column.tolist() for column in merged(keys, starts, ends)]
    [[7, 7, 8], [0, 5, 0], [4, 8, 1]]
    """
    order = np.argsort(starts, kind="stable")  # input is ordered by ends, so starts are nearly sorted
    order = order[stable_order(keys[order])]
    keys, starts, ends = keys[order], starts[order], ends[order]
    is_first = np.concatenate([[True], (keys[1:] != keys[:-1]) | (starts[1:] > _reached(keys, ends)[:-1])])
    firsts = np.flatnonzero(is_first)
    return keys[firsts], starts[firsts], np.maximum.reduceat(ends, firsts)


def _reached(keys: Column, ends: Column) -> Column:
    """Return the latest end so far among the intervals of a key; intervals are grouped by key."""
    group = np.concatenate([[0], np.cumsum(keys[1:] != keys[:-1])])
    floor, width = int(ends.min()), int(ends.max() - ends.min()) + 1
    if width * (int(group[-1]) + 1) >= 2**62:  # a clock jumped by years
        firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        return np.concatenate([np.maximum.accumulate(part) for part in np.split(ends, firsts[1:])])
    # With one running maximum: each key is shifted past the one before it.
    reached: Column = np.maximum.accumulate(ends - floor + group * width) - group * width + floor
    return reached


def union_seconds(keys: tuple[Column, Column], starts: Column, ends: Column) -> tuple[Column, Column, Column]:
    """Return the seconds that the intervals of each pair of keys cover: first keys, second keys and seconds.

    >>> starts, ends = np.array([0, 2, 5, 0]) * 10**9, np.array([3, 4, 8, 1]) * 10**9
    >>> [column.tolist() for column in union_seconds((np.array([7, 7, 7, 8]), np.array([1, 1, 1, 1])), starts, ends)]
    [[7, 8], [1, 1], [7.0, 1.0]]
    """
    # Pairs packed into one number: sorting by two columns takes twice as long.
    width = int(keys[1].max()) + 1
    pairs, starts, ends = merged(keys[0].astype(np.int64) * width + keys[1], starts, ends)
    firsts = np.flatnonzero(np.concatenate([[True], pairs[1:] != pairs[:-1]]))
    seconds = np.add.reduceat(ends - starts, firsts) / 1e9
    return pairs[firsts] // width, pairs[firsts] % width, seconds


def overlap_s(one: Sequence[Interval], other: Sequence[Interval]) -> float:
    """Return the seconds that two unions share.

    >>> overlap_s([(0, 10**9)], [(5 * 10**8, 2 * 10**9)])
    0.5
    """
    total, first, second = 0, 0, 0
    while first < len(one) and second < len(other):
        start = max(one[first][0], other[second][0])
        end = min(one[first][1], other[second][1])
        total += max(0, end - start)
        if one[first][1] < other[second][1]:
            first += 1
        else:
            second += 1
    return total / 1e9


def clipped(intervals: Iterable[Interval], start: int, end: int) -> list[Interval]:
    """Return the parts of intervals inside a window."""
    return [(max(begin, start), min(stop, end)) for begin, stop in intervals if begin < end and stop > start]


class Durations:
    """How long work usually takes: a histogram with 5% buckets, so memory does not grow with history."""

    __slots__ = ("_counts", "count", "longest_s")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.longest_s = 0.0

    def add(self, seconds: Column) -> None:
        """Add at least one duration."""
        buckets = (np.log(np.maximum(seconds, _SMALLEST_S)) / _LOG_GROWTH).astype(np.int64)
        for bucket, count in zip(*(found.tolist() for found in np.unique(buckets, return_counts=True)), strict=True):
            self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.count += seconds.size
        self.longest_s = max(self.longest_s, float(seconds.max()))

    def quantile(self, share: float) -> float:
        """Return a quantile in seconds, within 5%; 0 if there are no durations.

        >>> durations = Durations()
        >>> durations.add(np.array([1.0, 1.0, 1.0, 9.0]))
        >>> round(durations.quantile(0.5), 1)
        1.0
        """
        wanted = share * (self.count - 1)
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen > wanted:
                return min(math.exp((bucket + 0.5) * _LOG_GROWTH), self.longest_s)
        return self.longest_s
