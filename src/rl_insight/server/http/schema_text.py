"""Types of the OpenAPI document in words, for pages that people read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def type_text(schema: Mapping[str, Any], named: Callable[[str], str] = str) -> str:
    """Return a type in words; `named` writes the name of one that the document describes elsewhere.

    >>> type_text({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/components/schemas/Span"}}]})
    'list of Span or null'
    """
    if "$ref" in schema:
        return named(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        options = sorted(schema["anyOf"], key=lambda option: option.get("type") == "null")
        return " or ".join(dict.fromkeys(type_text(option, named) for option in options))
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {type_text(schema.get('items', {}), named)}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {type_text(schema['additionalProperties'], named)}"
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def content_text(described: Mapping[str, Any], named: Callable[[str], str] = str) -> str:
    """Return what a body or an answer holds: the type of JSON, else the media type; empty for anything at all."""
    content: Mapping[str, Any] = described.get("content", {})
    kinds = [
        type_text(one.get("schema", {}), named) if media == "application/json" else media
        for media, one in content.items()
    ]
    return " or ".join(kind for kind in kinds if kind != "any")
