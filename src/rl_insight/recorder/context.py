"""The current span, step, session and task, held in context variables."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from rl_insight.schema.tables import STEP_LIMIT

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

EnteredT = TypeVar("EnteredT")


class SpanLike(Protocol):
    """The fields of a parent span that its children need; the parent may be in another process."""

    trace_high: int
    trace_low: int
    span_id: int
    lane: str | None


current_span: ContextVar[SpanLike | None] = ContextVar("rl_insight_span", default=None)
current_step: ContextVar[int | None] = ContextVar("rl_insight_step", default=None)
current_session_id: ContextVar[str | None] = ContextVar("rl_insight_session", default=None)
current_task: ContextVar[Any] = ContextVar("rl_insight_task", default=None)
active_session: ContextVar[Any] = ContextVar("rl_insight_active_session", default=None)
"""This process's session object whose block is running; `current_session_id` may also name another process's."""

get_span, set_span, reset_span = current_span.get, current_span.set, current_span.reset
get_step, get_session_id = current_step.get, current_session_id.get
"""For hot paths: with an imported variable, Python 3.11 builds a method object for each `current_span.get()`, which
costs more than the call. A span makes five of these calls."""


class AlsoAsync:
    """Makes `async with` do the same as `with`."""

    __slots__ = ()

    async def __aenter__(self: AbstractContextManager[EnteredT]) -> EnteredT:
        return self.__enter__()

    async def __aexit__(self: AbstractContextManager[Any], *outcome: Any) -> None:  # noqa: PYI036
        self.__exit__(*outcome)


class ContextScope(AlsoAsync, Generic[EnteredT]):
    """Sets context variables for a `with` block, whose target is `entered`."""

    __slots__ = ("_entered", "_tokens", "_values")

    def __init__(self, values: Mapping[ContextVar[Any], Any], entered: EnteredT) -> None:
        self._values = values
        self._entered = entered
        self._tokens: list[Token[Any]] = []

    def __enter__(self) -> EnteredT:
        self._tokens += [variable.set(value) for variable, value in self._values.items()]
        return self._entered

    def __exit__(self, *_: object) -> None:
        while self._tokens:
            token = self._tokens.pop()
            reset(token.var, token)


def step_of(value: Any) -> int | None:
    """Return a value as a step: an integer, including NumPy's, that receivers accept; None for anything else.

    >>> step_of(7), step_of("7"), step_of(2**56)
    (7, None, None)
    """
    number = value if value.__class__ is int else integer_of(value)
    return number if number is not None and -STEP_LIMIT < number < STEP_LIMIT else None


def integer_of(value: Any) -> int | None:
    """Return an integer of Python, NumPy or another library; None for anything else.

    >>> integer_of(7), integer_of(True), integer_of(7.0)
    (7, None, None)
    """
    if value is None or isinstance(value, bool):
        return None
    try:
        return int(value.__index__())
    except Exception:  # noqa: BLE001  # not an integer, or a user's type that raises
        return None


def reset(variable: ContextVar[Any], token: Token[Any]) -> None:
    """Reset a context variable; do nothing in a context other than the one that set it."""
    try:
        variable.reset(token)
    except ValueError:
        return
