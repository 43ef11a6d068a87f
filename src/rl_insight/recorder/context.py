"""What is current: the span, the step, the session. Follows threads' and tasks' own contexts."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any, Protocol


class SpanLike(Protocol):
    """What a child needs of its parent: a span of this process, or one that a carrier named."""

    trace_high: int
    trace_low: int
    span_id: int
    lane: str | None


current_span: ContextVar[SpanLike | None] = ContextVar("rl_insight_span", default=None)
current_step: ContextVar[int | None] = ContextVar("rl_insight_step", default=None)
current_session_id: ContextVar[str | None] = ContextVar("rl_insight_session", default=None)
current_task: ContextVar[Any] = ContextVar("rl_insight_task", default=None)
active_session: ContextVar[Any] = ContextVar("rl_insight_active_session", default=None)
"""The session object of this process whose block is running; `current_session_id` may also name another process's."""


class AlsoAsync:
    """Has `async with` do what `with` does."""

    __slots__ = ()

    async def __aenter__(self: Any) -> Any:
        return self.__enter__()

    async def __aexit__(self: Any, *outcome: object) -> None:
        self.__exit__(*outcome)


class StepScope(AlsoAsync):
    """The training step of everything recorded inside a `with` block."""

    __slots__ = ("_step", "_token")

    def __init__(self, step: int) -> None:
        self._step = step
        self._token: Token[int | None] | None = None

    def __enter__(self) -> None:
        self._token = current_step.set(self._step)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            reset(current_step, self._token)


def step_of(value: Any) -> int | None:
    """Return a value as a step: an integer of 64 bits, also NumPy's; None for anything else.

    >>> step_of(7), step_of("7"), step_of(2**63)
    (7, None, None)
    """
    if value.__class__ is not int:
        if value is None or isinstance(value, bool):
            return None
        try:
            value = int(value.__index__())
        except Exception:  # noqa: BLE001  # not an integer, or a user's type that raises
            return None
    # The lowest integer means "no step" on the wire.
    return value if -(2**63) < value < 2**63 else None


def reset(variable: ContextVar[Any], token: Token[Any]) -> None:
    """Reset a context variable; a block that is left in another context than it was entered has nothing to reset."""
    try:
        variable.reset(token)
    except ValueError:
        return
