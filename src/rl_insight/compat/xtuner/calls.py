"""Calls of decorated functions: their samples, and what is traced around them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
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


class TracedCalls:
    """What the decorator of a function traces: a span around each call, events of its samples, or both."""

    def __init__(
        self,
        runtime: Callable[[], TraceRuntime],
        name: Any,
        *,
        finder: TargetFinder,
        fields: Mapping[str, Any],
        fields_getter: Callable[..., Mapping[str, Any] | None] | None,
        attributes: dict[str, Any],
        has_span: bool,
        has_events: bool,
    ) -> None:
        self._runtime = runtime
        self._name = name
        self._finder = finder
        self._fields = fields
        self._fields_getter = fields_getter
        self._attributes = attributes
        self._has_span = has_span
        self._has_events = has_events

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallBlock:
        """Return the block around one call."""
        runtime = self._runtime()
        call = CallBlock()
        if not runtime.enabled:
            return call
        name = str(_ask(self._name, args, kwargs)) if callable(self._name) else self._name
        if self._has_span and (runtime.config.has_otel_trace or not self._has_events):
            call.add(spans.OtelSpan(name, self._attributes, parent_carrier=None, enabled=True))
        if self._has_events:
            more = None if self._fields_getter is None else _ask(self._fields_getter, args, kwargs)
            samples = _ask(lambda: self._finder.find(args, kwargs), (), {})
            call.add_samples(SampleSpan(runtime, samples, name, {**self._fields, **(more or {})}))
        return call


class CallBlock:
    """The block around one call."""

    def __init__(self) -> None:
        self._blocks: list[Any] = []
        self._samples: SampleSpan | None = None
        self._stack = ExitStack()

    def add(self, block: Any) -> None:
        """Have a block entered and left with this one."""
        self._blocks.append(block)

    def add_samples(self, span: SampleSpan) -> None:
        """Have events of samples written at the start and the end."""
        self._samples = span
        self.add(span)

    def end(self, result: Any) -> Any:
        """Say what the function returned; returns it."""
        return result if self._samples is None else self._samples.end(result)

    def __enter__(self) -> CallBlock:
        for block in self._blocks:
            self._stack.enter_context(block)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)


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
