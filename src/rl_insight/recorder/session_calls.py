"""Sessions, phases and tasks as decorators, and what stands for them while nothing is recorded."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rl_insight.recorder.operations import traced
from rl_insight.recorder.spans import NoSpan

if TYPE_CHECKING:
    from rl_insight.recorder.spans import Span

Maker = Callable[..., "Span | None"]
"""Makes one more of the same from the same arguments; returns None while nothing is recorded."""


def decorated(function: Any, kind: str, make: Maker, arguments: tuple[Any, ...]) -> Any:
    """Return a function with a session, phase or task around each of its calls.

    Raises:
        TypeError: it is no function; or a generator, which only a phase can cover.
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


class NoSession(NoSpan):
    """What session(), phase() and task() return while nothing is recorded: does nothing, and still decorates."""

    __slots__ = ("_arguments", "_kind", "_make")

    session_id: None = None
    task_id: None = None

    def __init__(self, kind: str, make: Maker, arguments: tuple[Any, ...]) -> None:
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
