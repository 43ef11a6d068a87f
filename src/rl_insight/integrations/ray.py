"""Ray calls that continue the trace: a span in the worker becomes a child of the caller's.

>>> @ray.remote  # doctest: +SKIP
... @insight.traced_remote
... class Rollout:
...     @insight.trace_op("generate")
...     def generate(self, prompt): ...
>>> insight.call_remote(rollout.generate, "2 + 2 =")  # doctest: +SKIP
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from rl_insight.monitor import default_monitor
from rl_insight.recorder.decorators import surrounded

TargetT = TypeVar("TargetT", bound=Callable[..., Any])

_CONTEXT = "_insight_context"


def traced_remote(target: TargetT) -> TargetT:
    """Make an actor class or a task function continue the caller's trace; put it below `@ray.remote`."""
    if not inspect.isclass(target):
        return cast("TargetT", _continuing(target))
    for name, method in inspect.getmembers(target, inspect.isfunction):
        if not name.startswith("__"):
            setattr(target, name, _continuing(method))
    return target


def call_remote(remote: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an actor's method or a task like `.remote()`, with the current span, step and session.

    The receiver continues the trace if it is decorated with `traced_remote`; otherwise this is an ordinary call.
    """
    carrier = default_monitor.inject()
    if not carrier:
        return remote.remote(*args, **kwargs)
    try:
        return remote.remote(*args, **kwargs, **{_CONTEXT: carrier})
    except TypeError as error:
        if _CONTEXT not in str(error):
            raise
        return remote.remote(*args, **kwargs)


def _continuing(function: Any) -> Any:
    """Wrap a function to accept the caller's context as a keyword argument; its kind stays the same."""
    if _CONTEXT in inspect.signature(function).parameters:
        return function
    wrapper: Any = functools.wraps(function)(_by_kind(function))
    del wrapper.__wrapped__  # Ray would look through the wrapper and reject our keyword
    wrapper.__signature__ = _extended(inspect.signature(function))
    return wrapper


def _by_kind(function: Any) -> Any:
    def attached(_args: Any, kwargs: dict[str, Any]) -> Any:
        return default_monitor.attach(kwargs.pop(_CONTEXT, None) or {})

    async def iterate_async(*args: Any, **kwargs: Any) -> Any:
        with attached(args, kwargs):
            async for item in function(*args, **kwargs):
                yield item

    def iterate(*args: Any, **kwargs: Any) -> Any:
        with attached(args, kwargs):
            return (yield from function(*args, **kwargs))

    if inspect.isasyncgenfunction(function):
        return iterate_async
    return iterate if inspect.isgeneratorfunction(function) else surrounded(function, attached)


def _extended(signature: inspect.Signature) -> inspect.Signature:
    """Return the signature with our keyword, so that Ray accepts it."""
    parameters = list(signature.parameters.values())
    position = len(parameters)
    if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
        position -= 1
    parameters.insert(position, inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, default=None))
    return signature.replace(parameters=parameters)
