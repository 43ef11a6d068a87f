"""Exponential histograms: accurate quantiles in any unit, mergeable, without configuring buckets.

Each value maps to an integer *code*. Codes sort like values:

- positive values: ``32768 + i`` where ``2**(i/16) < value <= 2**((i+1)/16)``
- zero: ``0``
- negative values: the negated code of their magnitude

With 16 buckets per octave each is 4.4% wide, so a quantile estimated from a bucket's midpoint is within 2.2%.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf, log2

BUCKETS_PER_OCTAVE = 16
_ORIGIN = 32768


def bucket_code(value: float) -> int:
    """Return the code of the bucket that holds a finite value.

    >>> bucket_code(1.0), bucket_code(0.0), bucket_code(-1.0)
    (32767, 0, -32767)
    """
    if value > 0.0:
        return _ORIGIN - 1 + ceil(log2(value) * BUCKETS_PER_OCTAVE)
    if value < 0.0:
        return 1 - _ORIGIN - ceil(log2(-value) * BUCKETS_PER_OCTAVE)
    return 0


def upper_bound(code: int) -> float:
    """Return the largest value that falls into a bucket."""
    return _value_at(code, 1.0)


def lower_bound(code: int) -> float:
    """Return the value just below a bucket: its exclusive lower end (0 for the zero bucket)."""
    return _value_at(code, 0.0)


def middle(code: int) -> float:
    """Return a bucket's geometric middle, the best single estimate of a value in it."""
    return _value_at(code, 0.5)


def _value_at(code: int, part: float) -> float:
    """Return the value at a fraction of a bucket, from 0 (its lower end) to 1."""
    if code == 0:
        return 0.0
    index = code - _ORIGIN + part if code > 0 else 1.0 - part - code - _ORIGIN
    try:
        value = float(2.0 ** (index / BUCKETS_PER_OCTAVE))
    except OverflowError:
        value = inf
    return value if code > 0 else -value


def quantile(buckets: Mapping[int, int], q: float) -> float | None:
    """Estimate the q-quantile (0 to 1) of a histogram given as ``{code: count}``; None if it is empty.

    >>> round(quantile({bucket_code(8.0): 99, bucket_code(1000.0): 1}, 0.5), 3)
    7.829
    """
    total = sum(buckets.values())
    if total == 0:
        return None
    rank = q * total
    seen = 0
    code = 0
    for code in sorted(buckets):
        seen += buckets[code]
        if seen >= rank and buckets[code]:
            break
    return middle(code)
