"""Phases and tasks: spans below and above a session; and who makes them."""

from __future__ import annotations

from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from rl_insight.recorder.context import SpanLike, current_task, reset
from rl_insight.recorder.session_calls import decorated
from rl_insight.recorder.spans import Span

if TYPE_CHECKING:
    from rl_insight.recorder.sessions import Session

LANE = "sessions"
"""Where sessions are shown unless they name a lane; a lane for each of them would be too many."""


class Producer(Protocol):
    """Whoever makes sessions, phases and tasks; asked again for each call of a decorated function."""

    def new_session(
        self,
        task_id: Any,
        session_id: Any,
        step: int | None,
        facts: dict[str, Any] | None,
        attributes: dict[str, Any] | None,
        lane: str | None,
    ) -> Session | None:
        """Return a session, or None while nothing is recorded."""

    def new_phase(self, name: str, payload: dict[str, Any] | None) -> Phase | None:
        """Return a phase, or None while nothing is recorded."""

    def new_task(self, task_id: Any, attributes: dict[str, Any] | None) -> Task | None:
        """Return a task, or None while nothing is recorded."""


def maker_of(producer: Producer | None) -> Producer:
    """Return who makes more of the same; what was made without one cannot decorate."""
    if producer is None:
        raise TypeError("only what session(), phase() or task() returned can decorate a function.")
    return producer


class Phase(Span, gc=False, eq=False):
    """An interval of the current session; like any span, but part of the session's record."""

    _producer: Producer | None = None

    def begin(self, parent: SpanLike | None) -> None:
        """Start on the lane of the session, or on that of all sessions if the session is in another process."""
        self.lane = LANE if parent is None or parent.lane is None else parent.lane
        super().begin(parent)

    def __call__(self, function: Any) -> Any:
        """Decorate a function: each call is a phase."""
        return decorated(function, "phase", maker_of(self._producer).new_phase, (self.name, self.attributes))


class Task(Span, gc=False, eq=False):
    """One dataset item; sessions that start inside its `with` block belong to it."""

    task_id: Any = None
    _producer: Producer | None = None
    _task_token: Token[Any] | None = None

    def __call__(self, function: Any) -> Any:
        """Decorate a function: each call is a task."""
        return decorated(function, "task", maker_of(self._producer).new_task, (self.task_id, self.attributes))

    def __enter__(self) -> Task:
        super().__enter__()
        if self.task_id is None:
            self.task_id = f"{self.span_id:x}"
        self.attributes = {**(self.attributes or {}), "task_id": self.task_id}
        self._task_token = current_task.set(self.task_id)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        token, self._task_token = self._task_token, None
        if token is not None:
            reset(current_task, token)
        super().__exit__(kind, error, traceback)
