"""Values at the edges of JSON and UTF-8: non-finite numbers, lone surrogates, deep nesting, integers in any form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite, isnan
from typing import Any, Final

import msgspec

from rl_insight.schema.tables import STEP_LIMIT

MAX_JSON_DEPTH: Final = 100
"""Deeper JSON overflows the stack of some readers."""
_JSON_TEXT: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET: Final = re.compile(r"[\[\]{}]")
_encode: Final = msgspec.json.Encoder().encode
_decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode


def json_number(value: float) -> float | str:
    """Return a number that JSON can represent: `NaN`, `Infinity` and `-Infinity` become text.

    >>> json_number(0.5), json_number(float("nan")), json_number(float("-inf"))
    (0.5, 'NaN', '-Infinity')
    """
    if isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def json_form(value: Any) -> Any:
    """Return a value with `json_number` applied to every number in it."""
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, dict):
        return {key: json_form(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [json_form(inner) for inner in value]
    return value


def utf8_form(value: Any) -> Any:
    r"""Return a value whose strings can all be encoded as UTF-8: lone surrogates are escaped.

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


def is_too_deep(text: str) -> bool:
    """Return whether JSON is nested deeper than `MAX_JSON_DEPTH`.

    >>> is_too_deep('{"a":' * 101 + "1" + "}" * 101), is_too_deep('{"a": "[[[[["}')
    (True, False)
    """
    if text.count("[") + text.count("{") <= MAX_JSON_DEPTH:
        return False
    depth = 0
    for bracket in _BRACKET.findall(_JSON_TEXT.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_JSON_DEPTH:
            return True
    return False


def json_text(values: Mapping[str, Any] | None) -> str | None:
    """Return values as a JSON object string; None if there are none.

    >>> json_text({"tokens": 9}), json_text({}), json_text(None)
    ('{"tokens":9}', None, None)
    """
    return _encode(values).decode() if values else None


def json_object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; None for any other text.

    >>> json_object('{"tokens":9}'), json_object("[9]"), json_object("{")
    ({'tokens': 9}, None, None)
    """
    try:
        return _decode_object(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def whole_number(value: Any) -> int | None:
    """Return a step, rank or count given in any form as an integer; None for anything else.

    An integer beyond `STEP_LIMIT` is bad data.

    >>> whole_number(7), whole_number("7"), whole_number(7.0), whole_number(7.5), whole_number(""), whole_number(True)
    (7, 7, 7, None, None, None)
    """
    if isinstance(value, str):
        value = _number_in(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return value if is_integer and -STEP_LIMIT < value < STEP_LIMIT else None


def _number_in(text: str) -> float | None:
    for kind in (int, float):  # in this order: not every integer is a float
        try:
            return kind(text)
        except ValueError:
            continue
    return None
