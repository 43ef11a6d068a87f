"""Calls of decorated functions, and their samples."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from rl_insight.compat.xtuner.producer import SampleSpan
from rl_insight.compat.xtuner.samples import field_of, samples_of
from rl_insight.monitor import default_monitor


class TargetFinder:
    """Finds the samples of a call, as the decorator describes them."""

    def __init__(self, function: Callable[..., Any], target: Any, target_getter: Callable[..., Any] | None) -> None:
        self._target = target
        self._getter = target_getter or (target if callable(target) and field_of(target, "uid") is None else None)
        try:
            self._signature: inspect.Signature | None = inspect.signature(function)
        except (TypeError, ValueError):  # a C function without a signature
            self._signature = None

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the target of a call; None without one."""
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
        except TypeError:  # the function itself rejects the call
            return None


class CallBlock(ExitStack):
    """The block around one call."""

    samples: SampleSpan | None = None
    """Records the events of samples at the end."""

    def end(self, result: Any) -> Any:
        """Set the function's result and return it."""
        return result if self.samples is None else self.samples.end(result)


def ask(getter: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a user's getter; a failure is counted and logged once, and never reaches the traced function."""
    try:
        return getter(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  # a user's callable may raise anything
        recorder = default_monitor._recorder
        if recorder is not None:
            message = f"a getter of trace_function() raised {type(error).__name__}: skipped."
            recorder.losses.refuse("labels", "getter_failed", message, topic="trace_function")
        return None
