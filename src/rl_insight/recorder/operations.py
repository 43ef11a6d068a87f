"""Wraps functions in spans: plain, `async def`, generators and async generators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from rl_insight.recorder.context import current_span, reset
from rl_insight.recorder.spans import Span

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
        span.begin(current_span.get())
        advance, argument = iterator.send, None
        try:
            while True:
                token = current_span.set(span)
                try:
                    item = advance(argument)
                except StopIteration as stop:
                    return stop.value
                finally:
                    reset(current_span, token)
                try:
                    argument = yield item
                    advance = iterator.send
                except GeneratorExit:
                    iterator.close()
                    raise
                except BaseException as error:  # noqa: BLE001  # what the consumer throws belongs to the generator
                    advance, argument = iterator.throw, error
        except BaseException as error:
            span.finish(type(error))
            raise
        finally:
            span.finish()

    return call


def _traced_async_generator(  # noqa: C901  # the same loop as above, in its async spelling
    function: Callable[..., Any], make_span: SpanMaker
) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        span = make_span(args)
        iterator = function(*args, **kwargs)
        if span is not None:
            span.begin(current_span.get())
        advance, argument = iterator.asend, None
        try:
            while True:
                token = current_span.set(span) if span is not None else None
                try:
                    item = await advance(argument)
                except StopAsyncIteration:
                    return
                finally:
                    if token is not None:
                        reset(current_span, token)
                try:
                    argument = yield item
                    advance = iterator.asend
                except GeneratorExit:
                    await iterator.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001  # what the consumer throws belongs to the generator
                    advance, argument = iterator.athrow, error
        except BaseException as error:
            if span is not None:
                span.finish(type(error))
            raise
        finally:
            if span is not None:
                span.finish()

    return call
