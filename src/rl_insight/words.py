"""Numbers as text; durations and sizes are spelled as on the page (`web/src/units.ts`)."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal

_UNKNOWN = "–"  # noqa: RUF001 -- as on the page


def duration_text(nanoseconds: float) -> str:
    """Return a duration in nanoseconds.

    >>> duration_text(1_250_000), duration_text(12.3e9), duration_text(200e9), duration_text(7_500e9)
    ('1.25 ms', '12.3 s', '3 min 20 s', '2 h 05 min')
    """
    if not math.isfinite(nanoseconds):
        return _UNKNOWN
    size = abs(nanoseconds)
    if size < 1:
        return "0 s"
    if size < 1e3:
        return f"{_rounded(nanoseconds, 0)} ns"
    for unit, factor, limit in (("µs", 1e3, 1e6), ("ms", 1e6, 1e9), ("s", 1e9, 60e9)):
        if size < limit:
            return f"{_three_figures(nanoseconds / factor)} {unit}"
    return ("-" if nanoseconds < 0 else "") + _long_duration(int(_rounded(size / 1e9, 0)))


def seconds_text(seconds: float) -> str:
    """Return a duration in seconds, spelled like `duration_text`.

    >>> seconds_text(0.042), seconds_text(1.234), seconds_text(44.4), seconds_text(320)
    ('42.0 ms', '1.23 s', '44.4 s', '5 min 20 s')
    """
    return duration_text(seconds * 1e9)


def _long_duration(seconds: int) -> str:
    minutes, hours = seconds // 60, seconds // 3_600
    if seconds < 3_600:
        return f"{minutes} min {seconds % 60:02} s"
    return f"{hours} h {minutes % 60:02} min" if seconds < 86_400 else f"{hours // 24} d {hours % 24:02} h"


def size_text(size: float) -> str:
    """Return a size in bytes.

    >>> size_text(512), size_text(1_536), size_text(93.4e6)
    ('512 B', '1.50 KiB', '89.1 MiB')
    """
    if not math.isfinite(size):
        return _UNKNOWN
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    number = 0
    while abs(size) >= 1024 and number < len(units) - 1:
        size /= 1024
        number += 1
    return f"{_three_figures(size) if number else _rounded(size, 0)} {units[number]}"


def _three_figures(value: float) -> str:
    size = abs(value)
    return _rounded(value, 0 if size >= 99.95 else 1 if size >= 9.995 else 2)


def _rounded(value: float, digits: int) -> str:
    """Return a number with that many decimals, rounded half up as JavaScript does."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def ratio_text(ratio: float) -> str:
    """Return a factor.

    >>> ratio_text(2.41), ratio_text(31.2), ratio_text(12_345)
    ('2.4×', '31×', '12,345×')
    """
    return f"{ratio:.1f}×" if ratio < 10 else f"{ratio:,.0f}×"


def share_text(share: float) -> str:
    """Return a share in percent.

    >>> share_text(0.314), share_text(0.004)
    ('31%', '0.4%')
    """
    return f"{100 * share:.0f}%" if share >= 0.01 else f"{100 * share:.1g}%"


def number_text(value: float) -> str:
    """Return a number with three digits.

    >>> number_text(0.73123), number_text(1e-06), number_text(165_712.4)
    ('0.731', '1e-06', '166,000')
    """
    text = f"{value:.3g}"
    return f"{float(text):,.0f}" if 1e3 <= abs(value) < 1e12 else text


def counted(count: int, word: str) -> str:
    """Return a count with its word.

    >>> counted(1, "session"), counted(3, "process")
    ('1 session', '3 processes')
    """
    if count == 1:
        return f"1 {word}"
    return f"{count:,} {word}{'es' if word.endswith('s') else 's'}"
