"""XTuner's two tracing APIs on top of RL-Insight: change the import, keep the calls.

The producer trace records samples, the OpenTelemetry trace spans; the arguments of each call determine which one it is.

>>> import asyncio
>>> runtime = configure_trace(TraceConfig(enabled=False))
>>> with trace_span("generate", {"tokens": 512}):
...     trace_event("first token")
>>> async def judge(sample):
...     async with trace_span(sample, "judge"):
...         await trace_event(sample, "scored")
>>> asyncio.run(judge({"task_name": "gsm8k", "uid": 17}))
>>> get_trace_env_vars()
{}
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, MutableMapping
from typing import Any

from rl_insight.compat.xtuner import spans
from rl_insight.compat.xtuner.calls import CallBlock, TargetFinder, ask
from rl_insight.compat.xtuner.config import TRACE_VIEWER_SCOPE_ALL, TRACE_VIEWER_SCOPE_LATEST_PRODUCE_BATCH, TraceConfig
from rl_insight.compat.xtuner.producer import TRACE_JSONL_BASENAME, SampleSpan, session_of
from rl_insight.compat.xtuner.runtime import (
    TraceRuntime,
    active_runtime,
    close_trace,
    configure_trace,
    current_trace_runtime,
    flush_trace,
    get_trace_env_vars,
    merge_trace_runtime_env,
)
from rl_insight.compat.xtuner.samples import (
    TRACE_EXTRA_MODEL_STEP,
    TRACE_EXTRA_PRODUCE_BATCH_ID,
    TRACE_EXTRA_PRODUCER_FUTURE_STEP,
    TRACE_EXTRA_TRAIN_STEP,
    TraceEvent,
    build_produce_batch_id,
    build_trace_event,
    build_trace_id,
)
from rl_insight.monitor import default_monitor
from rl_insight.recorder.decorators import surrounded
from rl_insight.recorder.spans import NO_SPAN

__all__ = [
    "TRACE_EXTRA_MODEL_STEP",
    "TRACE_EXTRA_PRODUCER_FUTURE_STEP",
    "TRACE_EXTRA_PRODUCE_BATCH_ID",
    "TRACE_EXTRA_TRAIN_STEP",
    "TRACE_JSONL_BASENAME",
    "TRACE_VIEWER_SCOPE_ALL",
    "TRACE_VIEWER_SCOPE_LATEST_PRODUCE_BATCH",
    "TraceConfig",
    "TraceEvent",
    "TraceRuntime",
    "build_produce_batch_id",
    "build_trace_event",
    "build_trace_id",
    "close_trace",
    "configure_trace",
    "configure_trace_runtime",
    "current_trace_runtime",
    "flush_trace",
    "get_trace_env_vars",
    "get_tracer",
    "inject_trace_context",
    "merge_trace_runtime_env",
    "set_trace_attributes",
    "trace_event",
    "trace_function",
    "trace_span",
]

configure_trace_runtime = configure_trace
get_tracer = active_runtime
_OTEL_ARGUMENTS = frozenset({"attributes", "parent_carrier"})


def _is_otel_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether `trace_span` or `trace_event` was called with a name and attributes rather than a sample."""
    if _OTEL_ARGUMENTS & kwargs.keys():
        return True
    if "target" in kwargs or (args and not isinstance(args[0], str)):
        return False
    second = args[1] if len(args) > 1 else None
    return not isinstance(second, str) and not (args and "name" in kwargs)


def trace_span(*args: Any, **kwargs: Any) -> Any:
    """Trace a block: a stage of samples, or a span; `with` and `async with`.

    ``trace_span(target, name, **fields)`` writes `.start` and `.end` or `.error` events of each sample in the target.
    ``trace_span(name, attributes=None, *, parent_carrier=None)`` creates a current span.

    Raises:
        TypeError: a name or attributes have the wrong type, even if tracing is off.
        ValueError: a name or key is empty.
    """
    if _is_otel_call(args, kwargs):
        return _otel_span(*args, **kwargs)
    return _sample_span(*args, **kwargs)


def _otel_span(
    name: Any, attributes: Mapping[str, Any] | None = None, *, parent_carrier: Mapping[str, str] | None = None
) -> spans.OtelSpan:
    checked = spans.checked_name(name), spans.checked_attributes(attributes)
    return spans.OtelSpan(*checked, parent_carrier=parent_carrier, enabled=active_runtime().enabled)


def _sample_span(target: Any, name: str, **fields: Any) -> Any:
    found = active_runtime()
    return SampleSpan(found, target, name, fields) if found.enabled else NO_SPAN


def trace_event(*args: Any, **kwargs: Any) -> Any:
    """Trace an instant: of samples, or of the current span.

    ``await trace_event(target, name, **fields)`` returns the event, a list for several samples, or None.
    ``trace_event(name, attributes=None)`` needs no `await`.
    """
    if not _is_otel_call(args, kwargs):
        return _Recorded(_sample_event(*args, **kwargs))
    _otel_event(*args, **kwargs)
    return None


def _otel_event(name: Any, attributes: Mapping[str, Any] | None = None) -> None:
    checked_name, checked = spans.checked_name(name), spans.checked_attributes(attributes)
    if active_runtime().enabled:
        default_monitor.trace_event(checked_name, **checked)


def _sample_event(target: Any, name: str, **fields: Any) -> Any:
    found = active_runtime()
    if not found.enabled:
        return None
    if isinstance(target, (list, tuple)):
        events = found.record_many(target, name, **fields)
    else:
        event = found.record(target, name, **fields)
        events = [] if event is None else [event]
    for event in events:
        known = {key: value for key, value in event.to_dict().items() if value is not None and key != "stage"}
        with session_of(event):
            default_monitor.trace_event(name, **known)
    if len(events) > 1:
        return events
    return events[0] if events else None


class _Recorded:
    """A recorded event that may be awaited or ignored."""

    __slots__ = ("_result",)

    def __init__(self, result: Any) -> None:
        self._result = result

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return self._result


def trace_function(
    name: Any = None,
    attributes: Mapping[str, Any] | None = None,
    *,
    target: Any = None,
    target_getter: Callable[..., Any] | None = None,
    trace_kwargs_getter: Callable[..., Mapping[str, Any] | None] | None = None,
    **fields: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Trace each call of a function or a coroutine function.

    With a target or fields, or with a sample among the call's arguments or results, its samples get the events of a
    stage; with attributes or without a name, each call is a span.

    >>> @trace_function("generate", target="sample")
    ... async def generate(self, sample): ...

    Args:
        name: A string, or a function of the call's arguments; the function's module and name by default.
        attributes: Attributes of the span.
        target: The name of the parameter with the samples, a function of the call's arguments, or the samples.
        target_getter: Called with the function's arguments; returns the samples.
        trace_kwargs_getter: Called with the function's arguments; returns more fields, or None.
        fields: Fields of the events.

    Raises:
        TypeError: attributes or a name have the wrong type.
        ValueError: a name or key is empty.
    """
    getters = (target, target_getter, trace_kwargs_getter)
    is_about_samples = callable(name) or bool(fields) or any(getter is not None for getter in getters)
    has_events = is_about_samples or (name is not None and attributes is None)
    checked = spans.checked_attributes(attributes)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        fixed = None if callable(name) else spans.checked_name(name or f"{function.__module__}.{function.__qualname__}")
        finder = TargetFinder(function, target, target_getter)

        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallBlock:
            runtime = active_runtime()
            call = CallBlock()
            if not runtime.enabled:
                return call
            stage = str(ask(name, args, kwargs)) if fixed is None else fixed
            if not is_about_samples and (runtime.config.has_otel_trace or not has_events):
                call.enter_context(spans.OtelSpan(stage, checked, parent_carrier=None, enabled=True))
            if has_events:
                more = None if trace_kwargs_getter is None else ask(trace_kwargs_getter, args, kwargs)
                samples = ask(finder.find, (args, kwargs), {})
                call.samples = call.enter_context(SampleSpan(runtime, samples, stage, {**fields, **(more or {})}))
            return call

        return surrounded(function, begin, CallBlock.end)

    return decorate


def set_trace_attributes(attributes: Mapping[str, Any] | None) -> None:
    """Add attributes to the current span."""
    checked = spans.checked_attributes(attributes)
    if active_runtime().enabled:
        spans.set_attributes(checked)


def inject_trace_context(carrier: MutableMapping[str, str] | None = None) -> MutableMapping[str, str]:
    """Write the current context into a carrier, such as HTTP headers, or into a new one; return it."""
    target: MutableMapping[str, str] = {} if carrier is None else carrier
    return spans.inject(target) if active_runtime().enabled else target
