"""Decorators for spans, states, sessions, phases and tasks, and the no-op objects used while nothing is recorded."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import msgspec

from rl_insight.recorder import context  # by module: a pickled function cannot carry a ContextVar
from rl_insight.recorder.spans import NoSpan, Span

SpanMaker = Callable[[tuple[Any, ...], dict[str, Any]], "Span | NoSpan"]
"""Makes the span of one call from its arguments."""


def surrounded(
    function: Callable[..., Any],
    make: Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[Any]],
    ended: Callable[[Any, Any], Any] | None = None,
) -> Callable[..., Any]:
    """Return a function whose calls run inside a `with` block made from their arguments; coroutines while awaited.

    `ended`, if given, is called inside the block with the block's target and the function's result; the caller gets
    its return value.
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            with make(args, kwargs) as block:
                result = await function(*args, **kwargs)
                return result if ended is None else ended(block, result)

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with make(args, kwargs) as block:
            result = function(*args, **kwargs)
            return result if ended is None else ended(block, result)

    return call


def traced(function: Callable[..., Any], make_span: SpanMaker) -> Callable[..., Any]:
    """Return the function with a span around each call; its signature and kind stay the same."""
    if inspect.isasyncgenfunction(function):
        return _traced_async_generator(function, make_span)
    if inspect.isgeneratorfunction(function):
        return _traced_generator(function, make_span)
    return surrounded(function, make_span)


def _traced_generator(function: Callable[..., Any], make_span: SpanMaker) -> Callable[..., Any]:
    """Cover the iteration; between items the span is not current, because the consumer is running."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        span = make_span(args, kwargs)
        if not isinstance(span, Span):
            return (yield from function(*args, **kwargs))
        iterator = function(*args, **kwargs)
        span.begin(context.current_span.get())
        inside: context.SpanLike | None = span  # the current span of the generator's code when it resumes
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
        span = make_span(args, kwargs)
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


def decorated(
    function: Any, producer: Any, call: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any] | None
) -> Any:
    """Return a function with a state, session, phase or task around each call, made by the producer's method `call`.

    Raises:
        TypeError: it is not a function, or it is a generator, which only a phase can cover.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(decorated(function.__func__, producer, call, arguments, keywords))
    if producer is None:
        raise TypeError(f"only the return value of {call}() can decorate a function.")
    if isinstance(function, type) or not callable(function):
        what = f"the class {function.__name__}" if isinstance(function, type) else type(function).__name__
        raise TypeError(f"{call}() decorates functions, not {what}.")
    if call != "phase" and (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        raise TypeError(
            f"{call}() cannot decorate a generator: its consumer runs between items. Use it as a `with` block."
        )
    return traced(function, lambda _args, _kwargs: getattr(producer, call)(*arguments, **(keywords or {})))


class NoState(NoSpan, msgspec.Struct, gc=False, eq=False):
    """Returned by trace_state() while nothing is recorded: does nothing, and still decorates."""

    _producer: Any
    _call: str
    _arguments: tuple[Any, ...]
    _keywords: dict[str, Any]

    def __call__(self, function: Any) -> Any:
        """Decorate a function; whether anything is recorded is decided at each call."""
        return decorated(function, self._producer, self._call, self._arguments, self._keywords)


class NoSession(NoState, gc=False, eq=False):
    """Returned by session(), phase() and task() while nothing is recorded: does nothing, and still decorates."""

    session_id: ClassVar[None] = None
    task_id: ClassVar[None] = None

    def submit(self) -> NoSession:
        """Do nothing."""
        return self

    use = submit
    mark = count = update = finalize = drop = NoSpan.ignore
