"""Converts buckets of other systems to our codes (see `rl_insight.schema.histogram`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import inf, sqrt
from typing import Any

from rl_insight.schema.histogram import bucket_code

_OUR_SCALE = 4
"""16 buckets per octave: scale 4 in OpenTelemetry."""
SCALES = range(-10, 21)
"""The accepted scales of exponential histograms."""
_ORIGIN = 32768
_EXACT = 1 << 40
"""Added to a foreign index, so that it cannot be mistaken for a code."""


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
    """Return exponential buckets of one scale as those of a coarser one, or (wanted None) as codes.

    Without a scale, the keys are codes already. Finer buckets than ours are merged without error; a coarser one gets
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
