"""Wall time: how long at least one of many intervals was running."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


def union_ns(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> int:
    """Return the length of the union of intervals, in the unit of the arguments.

    >>> union_ns(np.array([0, 5, 20]), np.array([10, 8, 30]))
    20
    """
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")  # linear time for nearly sorted input, as from the store
    starts = starts[order]
    reached = np.maximum.accumulate(ends[order])
    gaps = starts[1:] - reached[:-1]
    return int(reached[-1] - starts[0] - gaps[gaps > 0].sum())


def merged(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the union of intervals as intervals with gaps between them, in order; empty ones are left out.

    >>> [part.tolist() for part in merged(np.array([0, 5, 20, 40]), np.array([10, 20, 30, 40]))]
    [[0], [30]]
    """
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    starts, ends = starts[ends > starts], ends[ends > starts]
    if not len(starts):
        return starts, ends
    reached = np.maximum.accumulate(ends)
    is_new = np.concatenate([[True], starts[1:] > reached[:-1]])
    last = np.concatenate([np.flatnonzero(is_new)[1:] - 1, [len(starts) - 1]])
    return starts[is_new], reached[last]


def covered_until(starts: NDArray[np.int64], ends: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how much of the time up to each of `times` the sorted, disjoint intervals cover.

    >>> covered_until(np.array([0, 20]), np.array([10, 30]), np.array([-5, 4, 15, 25, 99])).tolist()
    [0, 4, 10, 15, 20]
    """
    if not len(starts):
        return np.zeros(len(times), np.int64)
    sums = np.concatenate([[0], np.cumsum(ends - starts)])
    place = np.searchsorted(starts, times, "right") - 1
    last = np.maximum(place, 0)
    part = np.minimum(times, ends[last]) - starts[last]
    covered: NDArray[np.int64] = np.where(place < 0, 0, sums[last] + part)
    return covered


def quantiles(values: NDArray[np.int64], shares: Sequence[float]) -> list[float]:
    """Return quantiles of at least one value, interpolated between neighbors as `numpy.quantile` does.

    For a thousand values this takes 10 us and `numpy.quantile` 140, and hotspots have hundreds of groups.

    >>> quantiles(np.array([3, 1, 2]), [0.5, 0.75])
    [2.0, 2.5]
    """
    return between_ranks(np.partition(values, quantile_ranks(len(values), shares)), len(values), shares)


def quantile_ranks(count: int, shares: Sequence[float]) -> list[int]:
    """Return the ranks that quantiles of `count` values are interpolated from."""
    lower = {int(share * (count - 1)) for share in shares}
    return sorted(lower | {min(rank + 1, count - 1) for rank in lower})


def between_ranks(ordered: Mapping[int, int] | NDArray[np.int64], count: int, shares: Sequence[float]) -> list[float]:
    """Return quantiles of `count` values from those at `quantile_ranks`."""
    found = []
    for share in shares:
        place = share * (count - 1)
        low, high = int(ordered[int(place)]), int(ordered[min(int(place) + 1, count - 1)])
        found.append(low + (high - low) * (place - int(place)))
    return found


def by_group(groups: NDArray[Any]) -> list[tuple[int, NDArray[np.int64]]]:
    """Return the rows of each group in a column of group numbers, in order.

    >>> [(group, rows.tolist()) for group, rows in by_group(np.array([1, 0, 1]))]
    [(0, [1]), (1, [0, 2])]
    """
    if not len(groups):
        return []
    order, bounds = group_order(groups)
    numbers = groups[order[bounds[:-1]]].tolist()
    return [(number, order[first:last]) for number, (first, last) in zip(numbers, pairwise(bounds), strict=True)]


def group_order(groups: NDArray[Any]) -> tuple[NDArray[np.int64], list[int]]:
    """Return the rows of at least one group, group by group, and the start of each, followed by the end.

    >>> order, bounds = group_order(np.array([1, 0, 1]))
    >>> order.tolist(), bounds
    ([1, 0, 2], [0, 1, 3])
    """
    order = stable_order(groups)
    return order, [0, *(np.flatnonzero(np.diff(groups[order])) + 1).tolist(), len(groups)]


def stable_order(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Return the stable sort order of at least one integer.

    >>> stable_order(np.array([70_000, -5, 3, -5])).tolist()
    [1, 3, 2, 0]
    """
    rest = numbers - numbers.min()
    bits = int(rest.max()).bit_length()
    if bits > 48:
        return np.argsort(numbers, kind="stable")
    # NumPy sorts 16-bit numbers by radix: processes, lanes and names take a sixth to a half of the time.
    order = np.argsort(rest.astype(np.uint16), kind="stable")
    for shift in range(16, bits, 16):
        order = order[np.argsort((rest >> shift).astype(np.uint16)[order], kind="stable")]
    return order


def order_by(*columns: NDArray[Any]) -> NDArray[np.intp]:
    """Return the sort order of rows by several integer columns, the most significant first.

    One sort of packed numbers takes half the time of `numpy.lexsort`, which sorts by one column after the other.

    >>> order_by(np.array([2, 1, 1]), np.array([-5, 9, 7])).tolist()
    [2, 1, 0]
    """
    if not len(columns[0]):
        return np.zeros(0, np.intp)
    bounds = [(int(column.min()), int(column.max())) for column in columns]
    if math.prod(high - low + 1 for low, high in bounds) >= 2**63:
        return np.lexsort(columns[::-1])
    packed = np.zeros(len(columns[0]), np.int64)
    for column, (low, high) in zip(columns, bounds, strict=True):
        packed = packed * (high - low + 1) + (column.astype(np.int64) - low)
    return np.argsort(packed, kind="stable")


def unions_ns(starts: NDArray[np.int64], ends: NDArray[np.int64], bounds: list[int]) -> NDArray[np.int64]:
    """Return the length of the union of the intervals of each group; within a group they are in order of start.

    >>> unions_ns(np.array([0, 5, 3, 20]), np.array([10, 8, 7, 30]), [0, 2, 4]).tolist()
    [10, 14]
    """
    # Groups are laid end to end on one axis, as many at a time as fit.
    length = int(ends.max() - starts.min()) + 1
    together = max(1, 2**62 // length)
    found = []
    for first in range(0, len(bounds) - 1, together):
        edges = np.array(bounds[first : first + together + 1])
        rows = slice(edges[0], edges[-1])
        offsets = np.repeat(np.arange(len(edges) - 1) * length, np.diff(edges)) - int(starts.min())
        begun = starts[rows] + offsets
        reached = np.maximum.accumulate(ends[rows] + offsets)
        before = np.concatenate([begun[:1], reached[:-1]])
        found.append(np.add.reduceat(reached - np.maximum(begun, before), edges[:-1] - edges[0]))
    return np.concatenate(found)
