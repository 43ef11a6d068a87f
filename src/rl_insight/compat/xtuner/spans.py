"""XTuner's OpenTelemetry spans on top of the core, with XTuner's names, attributes, context and errors."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from rl_insight.monitor import default_monitor
from rl_insight.recorder.context import AlsoAsync, ContextScope, current_span, current_step, reset
from rl_insight.recorder.spans import Span

SPAN_NAME_PATH = "xtuner.span_name_path"
"""The span names from the outermost one; an attribute of every span, and a member of the baggage."""
_STEPS = ("xtuner.producer_future_step", "xtuner.train_step")
_path: ContextVar[tuple[str, ...]] = ContextVar("rl_insight_xtuner_path", default=())


def checked_name(name: Any) -> str:
    """Return a span's or event's name.

    Raises:
        TypeError: it is not a string.
        ValueError: it is empty.
    """
    if not isinstance(name, str):
        raise TypeError(f"a trace name must be a string, not {type(name).__name__}.")
    if not name.strip():
        raise ValueError("a trace name is empty.")
    return name.strip()


def checked_attributes(attributes: Any) -> dict[str, Any]:
    """Return attributes with values that a span supports.

    Raises:
        TypeError: they are not a mapping, or a key is not a string.
        ValueError: a key is empty.
    """
    if attributes is None:
        return {}
    if not isinstance(attributes, Mapping):
        raise TypeError(f"attributes must be a mapping, not {type(attributes).__name__}.")
    found = {}
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise TypeError(f"an attribute key must be a string, not {type(key).__name__}.")
        if not key.strip():
            raise ValueError("an attribute key is empty.")
        found[key.strip()] = _attribute_value(value)
    return found


def _attribute_value(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        return _scalar(value)
    items = [_scalar(item) for item in value]
    is_uniform = len({item.__class__ for item in items}) <= 1
    return items if is_uniform else [str(item) for item in items]


def _scalar(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -(2**63) <= value < 2**63 else str(value)
    return value if isinstance(value, (str, bool, float)) else f"<{type(value).__name__}>"


class OtelSpan(AlsoAsync):
    """A span that is current inside its block; `with` and `async with`."""

    __slots__ = ("_attributes", "_enabled", "_name", "_parent_carrier", "_scope", "_span")

    def __init__(
        self, name: str, attributes: dict[str, Any], *, parent_carrier: Mapping[str, str] | None, enabled: bool
    ) -> None:
        self._name = name
        self._attributes = attributes
        self._parent_carrier = parent_carrier
        self._enabled = enabled
        self._scope = ExitStack()
        self._span: Any = None

    def __enter__(self) -> None:
        if not self._enabled:
            return
        scope, outer = self._scope, _path.get()
        if self._parent_carrier is not None:
            scope.enter_context(default_monitor.attach(self._parent_carrier))
            outer = _read_path(self._parent_carrier) or outer
        path = (*outer, self._name)
        scope.callback(reset, _path, _path.set(path))
        step = next((self._attributes[name] for name in _STEPS if name in self._attributes), None)
        if isinstance(step, int):
            scope.enter_context(ContextScope({current_step: step}, None))
        span = default_monitor.trace_span(self._name, {SPAN_NAME_PATH: list(path), **self._attributes})
        self._span = scope.enter_context(span)

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        span, self._span = self._span, None
        if span is None:
            return
        if kind is not None and issubclass(kind, Exception):
            for key, value in (("error.type", kind.__name__), ("error.message", str(error)), ("error", True)):
                span.set_attribute(key, value)
            described = {"exception.type": kind.__name__, "exception.message": str(error)}
            default_monitor.trace_event("exception", **described)
        self._scope.__exit__(kind, error, traceback)  # type: ignore[arg-type]  # as `with` passes them


def set_attributes(attributes: Mapping[str, Any]) -> None:
    """Add attributes to the current span."""
    span = current_span.get()
    if isinstance(span, Span):
        for key, value in attributes.items():
            span.set_attribute(key, value)


def inject(carrier: MutableMapping[str, str]) -> MutableMapping[str, str]:
    """Write the current context and the names of its spans into a carrier."""
    default_monitor.inject(carrier)
    path = _path.get()
    if path:
        text = quote(msgspec.json.encode(path).decode(), safe="")
        others = [member for member in carrier.get("baggage", "").split(",") if member and not _is_path(member)]
        carrier["baggage"] = ",".join([*others, f"{SPAN_NAME_PATH}={text}"])
    return carrier


def _is_path(member: str) -> bool:
    return member.partition("=")[0].strip() == SPAN_NAME_PATH


def _read_path(carrier: Mapping[str, str]) -> tuple[str, ...]:
    for member in str(carrier.get("baggage", "")).split(","):
        if _is_path(member):
            try:
                found = msgspec.json.decode(unquote(member.partition("=")[2].strip()), type=list[str])
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return ()
            return tuple(found)
    return ()
