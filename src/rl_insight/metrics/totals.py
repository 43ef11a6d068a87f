"""Totals of counters and distributions from third-party senders.

Batches contain totals since a process started. Other senders report totals that reset with their source (cumulative),
or differences (delta). Both are converted to differences, which are added up here. Their buckets are converted to our
codes (see `rl_insight.schema.histogram`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, sqrt
from typing import Any

from rl_insight.metrics.families import Distribution
from rl_insight.schema.histogram import bucket_code, middle

_MAX_SOURCES = 16
_MAX_COUNT = 2**63 - 1
_OUR_SCALE = 4
"""16 buckets per octave: scale 4 in OpenTelemetry."""
SCALES = range(-10, 21)
"""The accepted scales of exponential histograms."""
_ORIGIN = 32768
_EXACT = 1 << 40
"""Added to a sender's bucket index, so that it cannot be mistaken for a code."""


@dataclass(slots=True)
class _SourceTotals:
    """The last totals of one source; sources of a series differ in their start time."""

    value: float = 0.0
    count: int = 0
    buckets: Mapping[int, int] = field(default_factory=dict)
    scale: int | None = None


@dataclass(slots=True)
class Added:
    """One added difference, which can be undone."""

    total: SeriesTotal
    value: float = 0.0
    count: int = 0
    codes: dict[int, int] = field(default_factory=dict)

    def undo(self) -> None:
        """Subtract the difference again."""
        self.total.value -= self.value
        self.total.count -= self.count
        for code, number in self.codes.items():
            self.total.codes[code] = self.total.codes.get(code, 0) - number


@dataclass(slots=True)
class SeriesTotal:
    """The total of one series.

    >>> total = SeriesTotal()
    >>> [total.add_cumulative(value).total.value for value in (5.0, 7.0, 1.0)]
    [5.0, 7.0, 8.0]
    """

    value: float = 0.0
    count: int = 0
    minimum: float = 0.0
    maximum: float = 0.0
    codes: dict[int, int] = field(default_factory=dict)
    sources: OrderedDict[int, _SourceTotals] = field(default_factory=OrderedDict)

    def add(self, more: float) -> Added:
        """Add a difference."""
        self.value += more
        return Added(self, more)

    def add_cumulative(self, value: float, start_ns: int = 0) -> Added:
        """Add the increase of a source's total; a total that fell was reset."""
        source = self._source(start_ns)
        more = value - source.value if value >= source.value else value
        source.value = value
        return self.add(more)

    def add_distribution(self, new: Distribution, scale: int | None = None) -> Added:
        """Add a difference; with a scale, its bucket keys are the sender's indices (see `to_codes`)."""
        codes = {code: number for code, number in to_codes(new.buckets, scale, None).items() if number > 0}
        is_first = not self.count
        for code, number in codes.items():
            self.codes[code] = min(self.codes.get(code, 0) + number, _MAX_COUNT)
        self.count = min(self.count + new.count, _MAX_COUNT)
        self.value += new.sum
        is_known = new.minimum <= new.maximum
        smallest, largest = (new.minimum, new.maximum) if is_known else _extremes(self.codes)
        self.minimum = smallest if is_first else min(self.minimum, smallest)
        self.maximum = largest if is_first else max(self.maximum, largest)
        return Added(self, new.sum, new.count, codes)

    def add_cumulative_distribution(self, seen: Distribution, start_ns: int = 0, scale: int | None = None) -> Added:
        """Add the increase of a source's distribution; one that fell was reset."""
        source = self._source(start_ns)
        known = to_codes(source.buckets, source.scale, scale)
        is_finer = scale is not None and source.scale is not None and scale > source.scale
        starts_over = (
            is_finer or seen.count < source.count or any(seen.buckets.get(key, 0) < old for key, old in known.items())
        )
        new = seen
        if not starts_over:
            more = {key: number - known.get(key, 0) for key, number in seen.buckets.items()}
            new = Distribution(seen.count - source.count, seen.sum - source.value, more, seen.minimum, seen.maximum)
        source.value, source.count, source.buckets, source.scale = seen.sum, seen.count, seen.buckets, scale
        return self.add_distribution(new, scale)

    def buckets(self) -> dict[int, int]:
        """Return the non-empty buckets by code."""
        return {code: number for code, number in self.codes.items() if number > 0}

    def _source(self, start_ns: int) -> _SourceTotals:
        found = self.sources.get(start_ns)
        if found is None:
            found = self.sources[start_ns] = _SourceTotals()
            if len(self.sources) > _MAX_SOURCES:
                self.sources.popitem(last=False)
        return found


class TotalsTable:
    """The totals of one process, by name and labels."""

    def __init__(self, max_series: int = 100_000) -> None:
        self._max_series = max_series
        self._totals: dict[tuple[str, str], SeriesTotal] = {}

    def of(self, name: str, labels: str) -> SeriesTotal | None:
        """Return the total of a series; None if there are too many series."""
        found = self._totals.get((name, labels))
        if found is None and len(self._totals) < self._max_series:
            found = self._totals[name, labels] = SeriesTotal()
        return found


def _extremes(codes: dict[int, int]) -> tuple[float, float]:
    return (middle(min(codes)), middle(max(codes))) if codes else (0.0, 0.0)


@lru_cache(maxsize=1024)
def explicit_codes(bounds: tuple[float, ...]) -> tuple[int, ...]:
    """Return the code for each bucket between explicit bounds; one more than there are bounds.

    A bucket maps to the code of its middle: the geometric mean of positive bounds, half the bound for the first bucket,
    the last bound for the overflow bucket. It depends only on the bounds, so counts never move between codes.

    >>> explicit_codes((1.0, 4.0)) == (bucket_code(0.5), bucket_code(2.0), bucket_code(4.0) + 1)
    True
    """
    return tuple(_code_between(lower, upper) for lower, upper in zip((-inf, *bounds), (*bounds, inf), strict=True))


def _code_between(lower: float, upper: float) -> int:
    if upper == inf:
        return 0 if lower == -inf else bucket_code(lower) + 1
    if lower == -inf:
        return bucket_code(upper / 2 if upper > 0 else upper)
    if lower > 0:
        return bucket_code(sqrt(lower) * sqrt(upper))
    if upper < 0:
        return bucket_code(-sqrt(-lower) * sqrt(-upper))
    return bucket_code((lower + upper) / 2)


def exponential_counts(point: Any) -> dict[int, int]:
    """Return the buckets of an exponential histogram by signed index: see `to_codes`."""
    counts: dict[int, int] = {}
    if point.zero_count:
        counts[0] = point.zero_count
    for sign, side in ((1, point.positive), (-1, point.negative)):
        offset = side.offset
        for place, count in enumerate(side.bucket_counts):
            if count:
                counts[sign * (_EXACT + offset + place)] = count
    return counts


def to_codes(counts: Mapping[int, int], scale: int | None, wanted: int | None) -> Mapping[int, int]:
    """Convert exponential buckets to a coarser scale, or to codes if `wanted` is None.

    Without a scale, the keys are already codes. Buckets finer than ours are merged without error; a coarser one gets
    the code of its middle.
    """
    if scale is None or (wanted is not None and wanted == scale):
        return counts
    converted: dict[int, int] = {}
    for key, count in counts.items():
        place = key if key == 0 else _converted(key, scale, wanted)
        converted[place] = converted.get(place, 0) + count
    return converted


def _converted(key: int, scale: int, wanted: int | None) -> int:
    sign, index = (1, key - _EXACT) if key > 0 else (-1, -key - _EXACT)
    if wanted is not None:
        # Only to a coarser scale: senders widen their buckets as values spread.
        return sign * (_EXACT + (index >> max(scale - wanted, 0)))
    if scale >= _OUR_SCALE:
        index >>= scale - _OUR_SCALE
    else:
        factor = _OUR_SCALE - scale
        index = (index << factor) + (1 << factor) // 2
    return sign * max(min(_ORIGIN + index, 2 * _ORIGIN - 1), 1)
