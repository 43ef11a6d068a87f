"""Wraps functions in spans: plain, `async def`, generators and async generators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from rl_insight.recorder import context  # by module: functions that travel by pickle cannot carry a ContextVar
from rl_insight.recorder.spans import NO_SPAN, Span

SpanMaker = Callable[[tuple[Any, ...]], "Span | None"]
"""Makes the span of one call from its positional arguments; None when nothing is recorded."""


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
        inside: context.SpanLike | None = span  # what is current in the generator's own code when it goes on
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
