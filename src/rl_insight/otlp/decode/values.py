"""Converts OTLP attributes to plain values and JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from rl_insight.otlp.mapping import MAX_DEPTH
from rl_insight.schema.json_values import json_number

_encode = msgspec.json.Encoder().encode


def plain(pairs: Iterable[Any]) -> dict[str, Any]:
    """Return a list of `KeyValue` messages as a dict."""
    found: dict[str, Any] = {}
    for pair in pairs:
        value = pair.value
        kind = value.WhichOneof("value")
        # Nearly all values are strings or integers; testing for both here saves a call.
        if kind == "string_value" or kind == "int_value":  # noqa: PLR1714 -- faster than a set, by 10% of this function
            found[pair.key] = getattr(value, kind)
        else:
            found[pair.key] = plain_value(value)
    return found


def plain_value(value: Any, depth: int = 0) -> Any:
    """Return an `AnyValue` message as a JSON value; non-finite numbers become strings."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    inner = getattr(value, kind)
    if kind == "double_value":
        return json_number(inner)
    if kind == "bytes_value":
        return inner.hex()
    if kind == "array_value":
        return [plain_value(item, depth + 1) for item in inner.values] if depth < MAX_DEPTH else "..."
    if kind == "kvlist_value":
        if depth >= MAX_DEPTH:
            return "..."
        return {pair.key: plain_value(pair.value, depth + 1) for pair in inner.values}
    return inner


def as_text(value: Any) -> str:
    """Return a plain value as a string for a label or message."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return _encode(value).decode()
