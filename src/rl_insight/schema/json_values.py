"""What JSON and UTF-8 lack, spelled the same way everywhere: numbers that are not finite, and lone surrogates."""

from __future__ import annotations

from math import isfinite, isnan
from typing import Any


def json_number(value: float) -> float | str:
    """Return a number as JSON can hold it: `NaN`, `Infinity` and `-Infinity` as text.

    >>> json_number(0.5), json_number(float("nan")), json_number(float("-inf"))
    (0.5, 'NaN', '-Infinity')
    """
    if isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def json_form(value: Any) -> Any:
    """Return a value in which every number is one that JSON can hold."""
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, dict):
        return {key: json_form(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [json_form(inner) for inner in value]
    return value


def utf8_form(value: Any) -> Any:
    r"""Return a value in which every text is one that UTF-8 can carry: lone surrogates become their escapes.

    >>> utf8_form({"key": ["plain", "half \ud83d"]})
    {'key': ['plain', 'half \\ud83d']}
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {utf8_form(key): utf8_form(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [utf8_form(inner) for inner in value]
    return value
