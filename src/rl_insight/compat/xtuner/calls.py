"""Calls of decorated functions: their samples, and what is traced around them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from rl_insight.compat.xtuner import spans
from rl_insight.compat.xtuner.producer import SampleSpan
from rl_insight.compat.xtuner.runtime import TraceRuntime
from rl_insight.compat.xtuner.samples import field_of, samples_of
from rl_insight.monitor import default_monitor


class TargetFinder:
    """Finds the samples of a function's call, as its decorator describes them."""

    def __init__(self, function: Callable[..., Any], target: Any, target_getter: Callable[..., Any] | None) -> None:
        self._target = target
        self._getter = target_getter or (target if callable(target) and field_of(target, "uid") is None else None)
        try:
            self._signature: inspect.Signature | None = inspect.signature(function)
        except (TypeError, ValueError):  # a function of an extension
            self._signature = None

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the target of a call; None where there is none."""
        if self._getter is not None:
            return self._getter(*args, **kwargs)
        if isinstance(self._target, str):
            return self._argument(self._target, args, kwargs)
        if self._target is not None:
            return self._target
        named = self._argument("rollout_state", args, kwargs)
        if samples_of(named):
            return named
        return next((value for value in (*args, *kwargs.values()) if samples_of(value)), None)

    def _argument(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in kwargs or self._signature is None:
            return kwargs.get(name)
        try:
            return self._signature.bind_partial(*args, **kwargs).arguments.get(name)
        except TypeError:  # a call that the function itself refuses
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCalls:
    """What the decorator of a function traces: a span around each call, events of its samples, or both."""

    runtime: Callable[[], TraceRuntime]
    name: Any
    finder: TargetFinder
    fields: Mapping[str, Any]
    fields_getter: Callable[..., Mapping[str, Any] | None] | None
    attributes: dict[str, Any]
    has_span: bool
    has_events: bool

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallBlock:
        """Enter the block around one call."""
        runtime = self.runtime()
        call = CallBlock()
        if not runtime.enabled:
            return call
        name = str(_ask(self.name, args, kwargs)) if callable(self.name) else self.name
        if self.has_span and (runtime.config.has_otel_trace or not self.has_events):
            call.enter_context(spans.OtelSpan(name, self.attributes, parent_carrier=None, enabled=True))
        if self.has_events:
            more = None if self.fields_getter is None else _ask(self.fields_getter, args, kwargs)
            samples = _ask(lambda: self.finder.find(args, kwargs), (), {})
            span = SampleSpan(runtime, samples, name, {**self.fields, **(more or {})})
            call.samples = call.enter_context(span)
        return call


class CallBlock(ExitStack):
    """The block around one call."""

    samples: SampleSpan | None = None
    """Gets the events of samples at the end."""

    def end(self, result: Any) -> Any:
        """Say what the function returned; returns it."""
        return result if self.samples is None else self.samples.end(result)


def _ask(getter: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a user's getter; its failure is counted and warned about once, and never reaches the traced function."""
    try:
        return getter(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  # a user's callable may raise anything
        recorder = default_monitor._recorder
        if recorder is not None:
            message = f"a getter of trace_function() raised {type(error).__name__}: left out."
            recorder.losses.refuse("labels", "getter_failed", message, topic="trace_function")
        return None
