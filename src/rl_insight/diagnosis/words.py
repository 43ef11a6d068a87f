"""Formats numbers for titles."""

from __future__ import annotations


def seconds_text(seconds: float) -> str:
    """Return a duration.

    >>> seconds_text(0.042), seconds_text(1.234), seconds_text(44.4), seconds_text(320), seconds_text(3_180)
    ('42 ms', '1.2 s', '44 s', '5.3 min', '53 min')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 600:
        return f"{seconds / 60:.1f} min"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


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
