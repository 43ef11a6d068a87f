"""Exponential histograms: good quantiles for any unit, mergeable, without the user choosing buckets.

A value is filed under an integer *code*. Codes sort as values do:

- positive values: ``32768 + i`` where ``2**(i/16) < value <= 2**((i+1)/16)``
- zero: ``0``
- negative values: the negated code of their magnitude

Sixteen buckets an octave make each 4.4 % wide, so a quantile read from a bucket's middle is within 2.2 %.
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
    if code > 0:
        return _power(code - _ORIGIN + 1)
    if code < 0:
        return -_power(-code - _ORIGIN)
    return 0.0


def lower_bound(code: int) -> float:
    """Return the value just below a bucket: its exclusive lower end (0 for the zero bucket)."""
    if code > 0:
        return _power(code - _ORIGIN)
    if code < 0:
        return -_power(-code - _ORIGIN + 1)
    return 0.0


def _power(index: float) -> float:
    try:
        return float(2.0 ** (index / BUCKETS_PER_OCTAVE))
    except OverflowError:
        return inf


def quantile(buckets: Mapping[int, int], q: float) -> float | None:
    """Estimate the q-quantile (0 to 1) of a histogram given as ``{code: count}``; None when it is empty.

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


def middle(code: int) -> float:
    """Return a bucket's geometric middle, the best single guess for a value in it."""
    if code == 0:
        return 0.0
    guess = _power(abs(code) - _ORIGIN + 0.5)
    return guess if code > 0 else -guess
