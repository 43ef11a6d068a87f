"""XTuner's producer trace over RL-Insight: change the import, keep the calls.

>>> config = TraceConfig(enabled=False)
>>> configure_trace(config)
>>> get_trace_env_vars()
{}
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar, Token
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from rl_insight.compat._recording import is_recording, start_recording
from rl_insight.compat.xtuner.config import TraceConfig, read_config
from rl_insight.compat.xtuner.files import ProducerTraceFile
from rl_insight.compat.xtuner.targets import STEPS, describe, has_identity, steps_in_context
from rl_insight.compat.xtuner.viewer import Viewer, open_viewer
from rl_insight.monitor import default_monitor
from rl_insight.recorder import context
from rl_insight.recorder.ids import host_name
from rl_insight.recorder.spans import NO_SPAN

__all__ = [
    "TraceConfig",
    "close_trace",
    "configure_trace",
    "flush_trace",
    "get_trace_env_vars",
    "inject_trace_context",
    "merge_trace_runtime_env",
    "trace_event",
    "trace_function",
    "trace_span",
]

logger = logging.getLogger("rl_insight")

TRACE_VARIABLE = "RL_INSIGHT_XTUNER_TRACE"
"""Carries the configuration to workers, as JSON."""
_FROM_PARENT = ("RL_INSIGHT_INHERIT", "RL_INSIGHT_SERVER_URL", "RL_INSIGHT_TOKEN", "RL_INSIGHT_RUN_ID")


class _State:
    """What this process traces with."""

    def __init__(self) -> None:
        self.config: TraceConfig | None = None
        self.file: ProducerTraceFile | None = None
        self.viewer: Viewer | None = None
        self.owns_monitor = False
        self.exit_registered = False


_state = _State()


# -- life


def configure_trace(config: TraceConfig | Mapping[str, Any] | None) -> None:
    """Trace from now on as the configuration says; a second call replaces the first.

    With `viewer_enabled` the line ``Producer Trace Viewer: <url>`` is printed; the page is that of a server that is
    known, or of one that is started beside this process and ends with it.

    Raises:
        TypeError: the configuration is of a type that cannot be used.
        ValueError: a key is unknown, or a value out of its range.
    """
    settings = read_config(config)
    close_trace()
    _state.config = settings
    if not settings.enabled:
        return
    receiver: dict[str, Any] | None = None
    if settings.viewer_enabled:
        _state.viewer = viewer = open_viewer(settings)
        if viewer is not None:
            receiver = {"server": {"backend": "http", "url": viewer.url, "token": viewer.token}}
            print(f"Producer Trace Viewer: {viewer.page(settings)}", flush=True)  # noqa: T201  # the trainer's line
    _start(settings, receiver)


def _start(settings: TraceConfig, receiver: dict[str, Any] | None) -> None:
    _state.owns_monitor = not is_recording()
    flusher = start_recording(receiver)
    if flusher is not None and settings.output_dir is not None:
        _state.file = ProducerTraceFile(
            flusher,
            Path(settings.output_dir) / f"producer_trace-{host_name()}-{os.getpid()}.jsonl",
            max_events=settings.max_events,
            max_events_per_trace=settings.max_events_per_trace,
        )
    if not _state.exit_registered:
        _state.exit_registered = True
        atexit.register(close_trace)


def flush_trace() -> None:
    """Deliver and write what was traced so far, within a bounded time."""
    if _state.file is not None:
        _state.file.save()
    elif _state.config is not None and _state.config.enabled:
        default_monitor.flush()


def close_trace() -> None:
    """Deliver and write everything, stop a viewer that was started here, and trace nothing more; idempotent."""
    file, viewer = _state.file, _state.viewer
    owns_monitor, _state.owns_monitor = _state.owns_monitor, False
    _state.config, _state.file, _state.viewer = TraceConfig(), None, None
    if file is not None:
        file.close()
    if owns_monitor:
        default_monitor.finish()
    if viewer is not None:
        viewer.close()


def _is_tracing() -> bool:
    """Tell whether to trace; a worker learns it from the variable that its trainer set."""
    if _state.config is None:
        raw = os.environ.get(TRACE_VARIABLE)
        _state.config = TraceConfig()
        if raw:
            try:
                configure_trace(msgspec.json.decode(raw))
            except Exception:  # a variable of another version must not stop a worker
                logger.exception("this worker is not traced: %s cannot be used.", TRACE_VARIABLE)
    config: TraceConfig | None = _state.config
    return config is not None and config.enabled


# -- workers


def get_trace_env_vars() -> dict[str, str]:
    """Return the environment that makes a worker trace like this process; empty when nothing is traced."""
    config = _state.config
    if config is None or not config.enabled:
        return {}
    directory = None if config.output_dir is None else str(Path(config.output_dir).absolute())
    fields = {**dataclasses.asdict(config), "output_dir": directory, "viewer_enabled": False}
    found = {name: os.environ[name] for name in _FROM_PARENT if name in os.environ}
    return {TRACE_VARIABLE: msgspec.json.encode(fields).decode(), **found}


def merge_trace_runtime_env(runtime_env: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a Ray runtime environment with the variables of `get_trace_env_vars`; the caller's own come first."""
    merged = dict(runtime_env or {})
    variables = {**get_trace_env_vars(), **(merged.get("env_vars") or {})}
    if variables:
        merged["env_vars"] = variables
    return merged


def inject_trace_context(
    carrier: MutableMapping[str, str] | None = None,
    *,
    train_step: int | None = None,
    model_step: int | None = None,
    producer_future_step: int | None = None,
) -> MutableMapping[str, str]:
    """Return a carrier (HTTP headers, say) with the current span, session and step; set the steps of this context.

    The carrier is a new dict unless one is given. The objects that are traced are never written to.
    """
    given = {"train_step": train_step, "model_step": model_step, "producer_future_step": producer_future_step}
    known = {name: given[name] for name in STEPS if given[name] is not None}
    if known:
        steps_in_context.set({**(steps_in_context.get() or {}), **known})
    return default_monitor.inject(carrier)


# -- spans and events


class trace_span:  # noqa: N801  # XTuner's spelling of a context manager
    """Trace a stage of a target's life; `async with` and `with`.

    >>> async def judge(sample):
    ...     async with trace_span(sample, "judge"):
    ...         ...

    Args:
        target: An object or a mapping with `task_name`, `uid`, `session_uid` and steps, or a list of them.
        name: The stage.
        fields: More fields, or others than the target's.
    """

    def __init__(self, target: Any, name: str, **fields: Any) -> None:
        self._target = target
        self._name = name
        self._fields = fields
        self._phase: Any = NO_SPAN
        self._tokens: list[tuple[ContextVar[Any], Token[Any]]] = []

    def __enter__(self) -> Any:
        if _is_tracing():
            known = describe(self._target, **self._fields)
            self._tokens = _enter_session(known)
            self._phase = default_monitor.phase(self._name, **known)
        return self._phase.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._phase.set_attribute("error_msg", f"{kind.__name__}: {error}")
        self._phase.__exit__(kind, error, traceback)
        while self._tokens:
            context.reset(*self._tokens.pop())

    async def __aenter__(self) -> Any:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


async def trace_event(target: Any, name: str, **fields: Any) -> None:
    """Trace an instant of a target's life."""
    if not _is_tracing():
        return
    known = describe(target, **fields)
    tokens = _enter_session(known)
    default_monitor.trace_event(name, **known)
    while tokens:
        context.reset(*tokens.pop())


def _enter_session(known: dict[str, Any]) -> list[tuple[ContextVar[Any], Token[Any]]]:
    tokens: list[tuple[ContextVar[Any], Token[Any]]] = [
        (context.current_session_id, context.current_session_id.set(known["trace_id"]))
    ]
    step = context.step_of(known.get("train_step"))
    if step is not None:
        tokens.append((context.current_step, context.current_step.set(step)))
    return tokens


def trace_function(
    name: Any = None,
    *,
    target: Any = None,
    target_getter: Callable[..., Any] | None = None,
    trace_kwargs_getter: Callable[..., Mapping[str, Any]] | None = None,
) -> Any:
    """Trace each call of a function or a coroutine function as a stage.

    >>> @trace_function("generate", target="sample")
    ... async def generate(self, sample): ...

    Args:
        name: The stage; the function's name when left out.
        target: The name of the parameter that is the target, or the target itself. Left out: the first argument
            that has a `uid`.
        target_getter: Called with the function's arguments, returns the target.
        trace_kwargs_getter: Called with the function's arguments, returns more fields.
    """
    if callable(name):
        return trace_function()(name)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(function):
            raise TypeError(f"trace_function decorates functions, not {type(function).__name__}.")
        stage = name or function.__name__
        find = target_getter or _target_finder(function, target)

        def span(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not _is_tracing():
                return NO_SPAN
            found = _ask(stage, find, args, kwargs)
            fields = _ask(stage, trace_kwargs_getter, args, kwargs) if trace_kwargs_getter is not None else None
            return trace_span(found, stage, **(fields or {}))

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                with span(args, kwargs):
                    return await function(*args, **kwargs)

            return call_async

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with span(args, kwargs):
                return function(*args, **kwargs)

        return call

    return decorate


def _target_finder(function: Callable[..., Any], target: Any) -> Callable[..., Any]:
    if target is not None and not isinstance(target, str):
        return lambda *_args, **_kwargs: target
    signature = inspect.signature(function)
    if isinstance(target, str):
        if target not in signature.parameters:
            raise ValueError(f"{function.__name__} has no parameter {target!r}: trace_function cannot find its target.")
        return lambda *args, **kwargs: signature.bind_partial(*args, **kwargs).arguments.get(target)

    def first_with_identity(*args: Any, **kwargs: Any) -> Any:
        return next((value for value in (*args, *kwargs.values()) if has_identity(value)), None)

    return first_with_identity


def _ask(stage: str, getter: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a user's getter; its failure is counted and warned about once, and never reaches the traced function."""
    try:
        return getter(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  # a user's callable may raise anything
        recorder = default_monitor._recorder
        if recorder is not None:
            message = f"a getter of trace_function({stage!r}) raised {type(error).__name__}: left out."
            recorder.losses.refuse("labels", "getter_failed", message, topic=stage)
        return None
