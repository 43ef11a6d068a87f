"""Attributes, resources and scopes as OTLP's bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from rl_insight._version import __version__
from rl_insight.collector.sinks.protobuf import BYTES, FIXED64, VARINT, double, sized, tag, text, varint
from rl_insight.schema import NO_STEP, Process

# common.v1.AnyValue, KeyValue, ArrayValue, KeyValueList
_STRING, _BOOL, _INT, _DOUBLE = tag(1, BYTES), tag(2, VARINT), tag(3, VARINT), tag(4, FIXED64)
_ARRAY, _KEY_VALUES = tag(5, BYTES), tag(6, BYTES)
_KEY, _VALUE = tag(1, BYTES), tag(2, BYTES)
_ITEM = tag(1, BYTES)
# A resource's attributes, a scope's name and version, and where both stand in Resource* and Scope* of every signal
_ATTRIBUTE = tag(1, BYTES)
_NAME, _VERSION = tag(1, BYTES), tag(2, BYTES)
_RESOURCE, _SCOPES = tag(1, BYTES), tag(2, BYTES)
_SCOPE = tag(1, BYTES)

ITEM = tag(2, BYTES)
"""What stands before each span, metric or log record of a scope: the same in all three signals."""
SCOPE = "rl_insight"
"""The scope of what has none of its own."""

_INT64 = range(-(2**63), 2**63)
_MAX_DEPTH = 16
_MAX_CACHED_TEXT = 64
_SEMANTIC_LABELS = {"algorithm": "rl.algorithm", "model": "rl.model.name", "model_name": "rl.model.name"}
"""Labels of a process that have a name in the semantic conventions for RL."""


def attributes(before: bytes, values: Mapping[str, Any]) -> bytes:
    """Return values as repeated `KeyValue` fields, each behind the field's tag."""
    if not values:
        return b""
    return before + before.join([_key_value(key, value) for key, value in values.items()])


def _key_value(key: str, value: Any) -> bytes:
    # Names, lanes and states repeat without end: a cache makes them three times cheaper.
    if isinstance(value, str) and len(value) <= _MAX_CACHED_TEXT:
        return _text_value(key, value)
    return sized(_key(key) + sized(any_value(value)))


@lru_cache(maxsize=16_384)
def _text_value(key: str, value: str) -> bytes:
    return sized(_key(key) + sized(_STRING + text(value)))


@lru_cache(maxsize=4096)
def _key(key: str) -> bytes:
    return _KEY + text(key) + _VALUE


def any_value(value: Any, depth: int = 0) -> bytes:
    """Return an `AnyValue`; what OTLP has no type for becomes text."""
    if isinstance(value, str):
        return _STRING + text(value)
    if isinstance(value, bool):
        return _BOOL + varint(value)
    if isinstance(value, int) and value in _INT64:
        return _INT + varint(value)
    if isinstance(value, float):
        return _DOUBLE + double(value)
    if value is None:
        return b""
    if depth >= _MAX_DEPTH or not isinstance(value, list | dict):
        return _STRING + text(str(value))
    if isinstance(value, list):
        return _ARRAY + sized(b"".join([_ITEM + sized(any_value(item, depth + 1)) for item in value]))
    pairs = [_ITEM + sized(_key(key) + sized(any_value(item, depth + 1))) for key, item in value.items()]
    return _KEY_VALUES + sized(b"".join(pairs))


def place(step: int, session_id: str | None) -> dict[str, Any]:
    """Return where something happened, as far as it is known."""
    found: dict[str, Any] = {}
    if step != NO_STEP:
        found["step"] = step
    if session_id is not None:
        found["session_id"] = session_id
    return found


def request_part(process: Process, scopes: Mapping[str, Iterable[bytes]]) -> bytes:
    """Return one process and what it recorded, by scope: a `ResourceSpans`, `ResourceMetrics` or `ResourceLogs`."""
    resource = attributes(_ATTRIBUTE, _resource_attributes(process))
    parts = [_RESOURCE, sized(resource)]
    for name, items in scopes.items():
        parts += [_SCOPES, sized(_SCOPE + sized(_scope(name)) + b"".join(items))]
    return b"".join(parts)


def _scope(name: str) -> bytes:
    return _NAME + text(name) + (_VERSION + text(__version__) if name == SCOPE else b"")


def _resource_attributes(process: Process) -> dict[str, Any]:
    semantic = {_SEMANTIC_LABELS[key]: value for key, value in process.labels.items() if key in _SEMANTIC_LABELS}
    found: dict[str, Any] = {
        **semantic,
        **process.labels,
        "service.name": process.role or "rl-insight",
        "service.instance.id": process.process_id,
        "host.name": process.host,
        "process.pid": process.pid,
        "rl.run.id": process.run_id,
        "run_id": process.run_id,
        "project": process.project,
        "experiment_name": process.experiment_name,
    }
    if process.rank is not None:
        found["rank"] = process.rank
    return found
