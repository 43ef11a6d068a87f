"""How long spans took, group by group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_insight.store.queries.intervals import group_order, quantiles, union_ns, unions_ns

MAX_ROWS: Final = 2_000_000
"""Spans that are in memory at once: they take up to 100 bytes each while they are measured."""
SHARES: Final = (0.5, 0.95, 0.99)
_MANY: Final = 200
"""From so many groups on, they are measured together."""
_PER_OCTAVE: Final = 16
_BUCKETS: Final = 64 * _PER_OCTAVE


class Measured(NamedTuple):
    """How many spans a group has, and how long they took in nanoseconds."""

    spans: int
    total: int
    wall: int
    shares: Sequence[float]
    longest: int
    errors: int


NOTHING = Measured(0, 0, 0, (0.0,) * len(SHARES), 0, 0)


def measured(found: dict[str, Any], groups: NDArray[Any]) -> dict[int, Measured]:
    """Return the measures of each group."""
    if not len(groups):
        return {}
    order, bounds = group_order(groups)
    if len(bounds) > _MANY:
        return _measure_together(found, groups)
    numbers = groups[order[bounds[:-1]]].tolist()
    with ThreadPoolExecutor(2) as pool:  # NumPy gathers and sorts without the interpreter lock
        parts = [order[first:last] for first, last in pairwise(bounds)]
        return dict(zip(numbers, pool.map(lambda rows: _measure(found, rows), parts), strict=True))


def _measure(found: dict[str, Any], rows: NDArray[np.int64]) -> Measured:
    starts, durations = found["start_ns"][rows], found["duration_ns"][rows]
    return Measured(
        len(starts),
        int(durations.sum()),
        union_ns(starts, starts + durations),
        quantiles(durations, SHARES),
        int(durations.max()),
        int(np.count_nonzero(found["failed"][rows])),
    )


def _measure_together(found: dict[str, Any], groups: NDArray[Any]) -> dict[int, Measured]:
    """Return the measures of many groups in a few passes over all rows; one by one, small ones cost 50 us each."""
    by_start = np.argsort(found["start_ns"], kind="stable")
    order, bounds = group_order(groups[by_start])
    order = by_start[order]
    firsts, counts = np.array(bounds[:-1]), np.diff(bounds)
    starts, durations = found["start_ns"][order], found["duration_ns"][order]
    by_length = np.argsort(found["duration_ns"])
    lengths = found["duration_ns"][by_length[group_order(groups[by_length])[0]]]
    columns = (
        counts.tolist(),
        np.add.reduceat(durations, firsts).tolist(),
        unions_ns(starts, starts + durations, bounds).tolist(),
        np.transpose([_share(lengths, firsts, counts, share) for share in SHARES]).tolist(),
        lengths[firsts + counts - 1].tolist(),
        np.add.reduceat(found["failed"][order].astype(np.int64), firsts).tolist(),
    )
    return {number: Measured(*row) for number, *row in zip(groups[order[firsts]].tolist(), *columns, strict=True)}


def _share(
    lengths: NDArray[np.int64], firsts: NDArray[np.int64], counts: NDArray[np.int64], share: float
) -> NDArray[np.float64]:
    """Return a quantile of each group, as `quantiles` does; the lengths of a group are in order."""
    place = share * (counts - 1)
    below = place.astype(np.int64)
    low, high = lengths[firsts + below], lengths[firsts + np.minimum(below + 1, counts - 1)]
    found: NDArray[np.float64] = low + (high - low) * (place - below)
    return found


class Lengths:
    """Exact quantiles of lengths that come in parts; what it keeps does not grow with them.

    All parts are given twice: at first they are counted in buckets, then those in the buckets of the quantiles are
    kept.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_BUCKETS, np.int64)
        self._kept: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        """Lengths in the buckets of the quantiles, and how often each occurs."""

    def __len__(self) -> int:
        return int(self._counts.sum())

    def add(self, durations: NDArray[np.int64]) -> None:
        """Count a part."""
        self._counts += np.bincount(_bucket(durations), minlength=_BUCKETS)

    def keep(self, durations: NDArray[np.int64]) -> None:
        """Take a part again, once all have been counted."""
        is_wanted = np.zeros(_BUCKETS, bool)
        is_wanted[[self._place(rank)[0] for rank in self._ranks()]] = True
        self._kept.append(np.unique(durations[is_wanted[_bucket(durations)]], return_counts=True))

    def quantiles(self) -> list[float]:
        """Return the quantiles of `SHARES`, once all parts were kept, as `quantiles` does."""
        values, counts = (np.concatenate(column) for column in zip(*self._kept, strict=True))
        order = np.argsort(values, kind="stable")
        values, upto = values[order], np.cumsum(counts[order])
        buckets = _bucket(values)
        at = {}
        for rank in self._ranks():
            bucket, within = self._place(rank)
            first = int(np.searchsorted(buckets, bucket))
            before = int(upto[first - 1]) if first else 0
            at[rank] = int(values[np.searchsorted(upto, before + within, "right")])
        found = []
        for share in SHARES:
            place = share * (len(self) - 1)
            low, high = at[int(place)], at[min(int(place) + 1, len(self) - 1)]
            found.append(low + (high - low) * (place - int(place)))
        return found

    def _ranks(self) -> set[int]:
        lower = {int(share * (len(self) - 1)) for share in SHARES}
        return lower | {min(rank + 1, len(self) - 1) for rank in lower}

    def _place(self, rank: int) -> tuple[int, int]:
        """Return the bucket of the length with this rank, and its rank in there."""
        upto = np.cumsum(self._counts)
        bucket = int(np.searchsorted(upto, rank, "right"))
        return bucket, rank - int(upto[bucket] - self._counts[bucket])


class LargeGroup:
    """Measures a group that comes in parts, all of them twice, in the order of their starts."""

    def __init__(self) -> None:
        self._total = self._wall = self._longest = self._errors = 0
        self._reached = -(2**63)
        """The end of what has been added."""
        self._lengths = Lengths()

    def add(self, found: dict[str, Any]) -> None:
        """Add a part: no span of it began before one of an earlier part."""
        starts, durations = found["start_ns"], found["duration_ns"]
        ends = starts + durations
        # A span that reaches into this part covers all of the time up to its end.
        begun = np.maximum(starts, self._reached)
        self._wall += union_ns(begun, np.maximum(ends, begun))
        self._reached = max(self._reached, int(ends.max()))
        self._total += int(durations.sum())
        self._longest = max(self._longest, int(durations.max()))
        self._errors += int(np.count_nonzero(found["failed"]))
        self._lengths.add(durations)

    def keep(self, found: dict[str, Any]) -> None:
        """Take a part again, once all have been added."""
        self._lengths.keep(found["duration_ns"])

    def measured(self) -> Measured:
        """Return the measures."""
        lengths = self._lengths
        return Measured(len(lengths), self._total, self._wall, lengths.quantiles(), self._longest, self._errors)


def slice_edges(counts: Iterable[tuple[int, int]], at_most: int) -> list[int]:
    """Return where slices of numbered rows begin that hold at most so many, if a single number does not hold more.

    >>> slice_edges([(0, 5), (1, 3), (7, 4), (8, 90), (9, 1)], 8)
    [0, 7, 8, 9]
    """
    edges: list[int] = []
    waiting = 0
    for number, count in counts:
        if not edges or waiting + count > at_most:
            edges.append(number)
            waiting = 0
        waiting += count
    return edges


def _bucket(durations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return buckets of lengths, in their order."""
    found: NDArray[np.int64] = (np.log2(np.maximum(durations, 1)) * _PER_OCTAVE).astype(np.int64)
    return found
