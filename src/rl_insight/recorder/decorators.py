"""Functions wrapped in spans, states, sessions, phases and tasks; and what these are while nothing is recorded."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from rl_insight.recorder import context  # by module: functions that travel by pickle cannot carry a ContextVar
from rl_insight.recorder.spans import NO_SPAN, NoSpan, Span

SpanMaker = Callable[[tuple[Any, ...]], "Span | None"]
"""Makes the span of one call from its positional arguments; None when nothing is recorded."""
Maker = Callable[..., "Span | None"]
"""Makes one more of the same from the same arguments; returns None while nothing is recorded."""


def surrounded(
    function: Callable[..., Any], make: Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[Any]]
) -> Callable[..., Any]:
    """Return a function whose calls run inside a block made from their arguments; a coroutine while it is awaited."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            with make(args, kwargs):
                return await function(*args, **kwargs)

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with make(args, kwargs):
            return function(*args, **kwargs)

    return call


def traced(function: Callable[..., Any], make_span: SpanMaker) -> Callable[..., Any]:
    """Return the function with a span around each call; its signature and its kind stay the same."""
    if inspect.isasyncgenfunction(function):
        return _traced_async_generator(function, make_span)
    if inspect.isgeneratorfunction(function):
        return _traced_generator(function, make_span)
    if inspect.iscoroutinefunction(function):
        return _traced_coroutine(function, make_span)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        span = make_span(args)
        if span is None:
            return function(*args, **kwargs)
        with span:
            return function(*args, **kwargs)

    return call


def _traced_coroutine(function: Callable[..., Any], make_span: SpanMaker) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        span = make_span(args)
        if span is None:
            return await function(*args, **kwargs)
        with span:
            return await function(*args, **kwargs)

    return call


def _traced_generator(function: Callable[..., Any], make_span: SpanMaker) -> Callable[..., Any]:
    """Cover the iteration; between two items the span is not current, as the consumer runs then."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        span = make_span(args)
        if span is None:
            return (yield from function(*args, **kwargs))
        iterator = function(*args, **kwargs)
        span.begin(context.current_span.get())
        inside: context.SpanLike | None = span  # what is current in the generator's own code when it resumes
        advance, argument = iterator.send, None
        try:
            while True:
                token = context.current_span.set(inside)
                try:
                    item = advance(argument)
                except StopIteration as stop:
                    return stop.value
                finally:
                    argument = None  # an exception kept here would keep this frame alive
                    inside = context.current_span.get()
                    context.reset(context.current_span, token)
                try:
                    argument = yield item
                    advance = iterator.send
                except BaseException as error:  # noqa: BLE001  # what the consumer throws belongs to the generator
                    advance, argument = iterator.throw, error
        except BaseException as error:
            span.finish(type(error))
            raise
        finally:
            span.finish()

    return call


def _traced_async_generator(function: Callable[..., Any], make_span: SpanMaker) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        span = make_span(args) or NO_SPAN
        iterator = function(*args, **kwargs)
        span.begin(context.current_span.get())
        inside = span if isinstance(span, Span) else context.current_span.get()
        advance, argument = iterator.asend, None
        try:
            while True:
                token = context.current_span.set(inside)
                try:
                    item = await advance(argument)
                except StopAsyncIteration:
                    return
                finally:
                    argument = None
                    inside = context.current_span.get()
                    context.reset(context.current_span, token)
                try:
                    argument = yield item
                    advance = iterator.asend
                except BaseException as error:  # noqa: BLE001  # what the consumer throws belongs to the generator
                    advance, argument = iterator.athrow, error
        except BaseException as error:
            span.finish(type(error))
            raise
        finally:
            span.finish()

    return call


def decorated(function: Any, kind: str, make: Maker, arguments: tuple[Any, ...]) -> Any:
    """Return a function with a state, session, phase or task around each of its calls.

    Raises:
        TypeError: it is not a function; or a generator, which only a phase can cover.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(decorated(function.__func__, kind, make, arguments))
    if isinstance(function, type) or not callable(function):
        what = f"the class {function.__name__}" if isinstance(function, type) else type(function).__name__
        raise TypeError(f"{kind}() decorates functions, not {what}.")
    if kind != "phase" and (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        raise TypeError(
            f"{kind}() cannot decorate a generator: its consumer runs in between. Use it as a `with` block."
        )
    return traced(function, lambda _args: make(*arguments))


class NoState(NoSpan, msgspec.Struct, gc=False, eq=False):
    """What trace_state() returns while nothing is recorded: does nothing, and still decorates."""

    _producer: Any
    _name: str
    _lane: str | None
    _labels: dict[str, Any]

    def __call__(self, function: Any) -> Any:
        """Decorate a function: whether anything is recorded is decided at each call."""
        return decorated(function, "trace_state", self._producer.new_state, (self._name, self._lane, self._labels))


class NoSession(NoSpan):
    """What session(), phase() and task() return while nothing is recorded: does nothing, and still decorates."""

    __slots__ = ("_arguments", "_kind", "_make")

    session_id: None = None
    task_id: None = None

    def __init__(self, kind: str, make: Maker, *arguments: Any) -> None:
        self._kind = kind
        self._make = make
        self._arguments = arguments

    def __call__(self, function: Any) -> Any:
        """Decorate a function: whether anything is recorded is decided at each call."""
        return decorated(function, self._kind, self._make, self._arguments)

    def __enter__(self) -> NoSession:
        return self

    async def __aenter__(self) -> NoSession:
        return self

    def submit(self) -> NoSession:
        """Do nothing."""
        return self

    def use(self) -> NoSession:
        """Do nothing."""
        return self

    def mark(self, name: str) -> None:
        """Do nothing."""

    def count(self, name: str, amount: float = 1) -> None:
        """Do nothing."""

    def update(self, **facts: Any) -> None:
        """Do nothing."""

    def finalize(self, status: str, reason: str | None = None, **facts: Any) -> None:
        """Do nothing."""

    def drop(self, reason: str | None = None) -> None:
        """Do nothing."""
