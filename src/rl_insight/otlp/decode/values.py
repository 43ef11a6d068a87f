"""OTLP attributes as plain values and as JSON text."""

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
        # Text and whole numbers are nearly all there is; one test for both saves the call.
        if kind == "string_value" or kind == "int_value":  # noqa: PLR1714 -- quicker than a set: a tenth of the walk
            found[pair.key] = getattr(value, kind)
        else:
            found[pair.key] = plain_value(value)
    return found


def plain_value(value: Any, depth: int = 0) -> Any:
    """Return an `AnyValue` message as what JSON can hold; numbers that JSON lacks become text."""
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


def json_text(attributes: dict[str, Any]) -> str | None:
    """Return attributes as the text of a JSON object; None when there are none."""
    return _encode(attributes).decode() if attributes else None


def as_text(value: Any) -> str:
    """Return one plain value as the text of a label or a message."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return _encode(value).decode()
