"""AReaL's `perf_tracer` over RL-Insight: change the import, keep the calls.

>>> from rl_insight.compat import areal as perf_tracer
>>> perf_tracer.is_configured()
False
>>> with perf_tracer.trace_scope("train.step", category="compute", args={"step": 3}):
...     pass
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from enum import Enum
from types import TracebackType
from typing import Any

from rl_insight.compat.areal.config import read_config
from rl_insight.compat.areal.tracer import PerfTracer, SessionTracer
from rl_insight.monitor import default_monitor
from rl_insight.recorder import context
from rl_insight.recorder.session_calls import NoSession
from rl_insight.recorder.session_parts import Phase
from rl_insight.recorder.spans import CANCELLED, NO_SPAN, NoSpan, Span, outcome

__all__ = [
    "Category",
    "PerfTracer",
    "SessionTracer",
    "atrace_scope",
    "atrace_session_phase",
    "configure",
    "get_session_id",
    "get_session_tracer",
    "get_task_id",
    "get_tracer",
    "instant",
    "is_configured",
    "register_session",
    "register_task",
    "reset",
    "save",
    "session_context",
    "set_session_id",
    "set_task_id",
    "trace_perf",
    "trace_scope",
    "trace_session",
    "trace_session_event",
    "trace_session_phase",
]


class Category(str, Enum):
    """What kind of work a scope is; the long spellings mean the same."""

    COMPUTE = "compute"
    COMM = "comm"
    IO = "io"
    SYNC = "sync"
    SCHEDULER = "scheduler"
    INSTR = "instr"
    MISC = "misc"

    @classmethod
    def of(cls, value: Any) -> str:
        """Return the short spelling; what is none of them is `misc`.

        >>> Category.of("Communication")
        'comm'
        """
        name = str(getattr(value, "value", value)).strip().lower()
        name = _LONG_SPELLINGS.get(name, name)
        return name if name in _CATEGORIES else cls.MISC.value


_LONG_SPELLINGS = {
    "computation": "compute",
    "communication": "comm",
    "communications": "comm",
    "i/o": "io",
    "input_output": "io",
    "synchronization": "sync",
    "synchronisation": "sync",
    "scheduling": "scheduler",
    "instrument": "instr",
    "instrumentation": "instr",
    "miscellaneous": "misc",
}
_CATEGORIES = {category.value for category in Category}

_tracer: PerfTracer | None = None
_task_id: ContextVar[Any] = ContextVar("rl_insight_areal_task", default=None)
_session_id: ContextVar[Any] = ContextVar("rl_insight_areal_session", default=None)


# -- life


def configure(config: Any, *, rank: int, role: str | None = None) -> PerfTracer:
    """Start the tracer of this process; once, until `reset`.

    Args:
        config: A mapping, a dataclass or an OmegaConf node with `enabled`, `experiment_name`, `trial_name`,
            `fileroot`, `save_interval`, `profile_steps` and `session_tracer.{enabled, flush_threshold}`.
        rank: The number of this process.
        role: What it does; a directory of its own in the files' paths.

    Raises:
        RuntimeError: the tracer is configured already.
        ValueError: the rank is negative, or a value of the configuration cannot be used.
    """
    global _tracer  # noqa: PLW0603  # AReaL's tracer is one for each process
    if _tracer is not None:
        raise RuntimeError("the tracer is configured already: call reset() first.")
    if isinstance(rank, bool) or not isinstance(rank, int):
        raise TypeError(f"rank is {type(rank).__name__}, not an integer.")
    if rank < 0:
        raise ValueError(f"rank is {rank}: it cannot be negative.")
    _tracer = PerfTracer(read_config(config), rank=rank, role=role)
    return _tracer


def is_configured() -> bool:
    """Tell whether `configure` was called."""
    return _tracer is not None


def reset() -> None:
    """Write everything and forget the tracer; without one, nothing happens."""
    global _tracer  # see configure
    tracer, _tracer = _tracer, None
    if tracer is not None:
        tracer.close()


def get_tracer() -> PerfTracer:
    """Return the tracer.

    Raises:
        RuntimeError: `configure` was not called.
    """
    if _tracer is None:
        raise RuntimeError("the tracer is not configured: call configure(config, rank=...) first.")
    return _tracer


def get_session_tracer() -> SessionTracer | None:
    """Return the session tracer; None where the configuration turns it off.

    Raises:
        RuntimeError: `configure` was not called.
    """
    return get_tracer().sessions


def save(step: int | None = None, force: bool = False) -> None:
    """Write the files: in the background at each `save_interval`-th step; at once, and waiting, when forced."""
    if _tracer is not None:
        _tracer.save(step, force=force)


def _is_tracing() -> bool:
    return _tracer is not None and _tracer.enabled


# -- scopes


def trace_scope(name: str, category: Any = Category.MISC, args: Mapping[str, Any] | None = None) -> Span | NoSpan:
    """Record a scope; `with` and `async with`."""
    if not _is_tracing():
        return NO_SPAN
    return default_monitor.trace_span(name, {**(args or {}), "category": Category.of(category)})


atrace_scope = trace_scope


def instant(name: str, category: Any = Category.MISC, args: Mapping[str, Any] | None = None) -> None:
    """Record an instant."""
    if _is_tracing():
        default_monitor.trace_event(name, **{**(args or {}), "category": Category.of(category)})


def trace_perf(name: str, category: Any = Category.MISC) -> Callable[[Any], Any]:
    """Record each call of a function or a coroutine function."""
    return default_monitor.trace_op(name, category=Category.of(category))


# -- sessions


def _sessions() -> SessionTracer | None:
    return _tracer.sessions if _is_tracing() and _tracer is not None else None


def register_task() -> int | None:
    """Return the id of a new task; None while sessions are not traced."""
    sessions = _sessions()
    return None if sessions is None else sessions.register_task()


def register_session(task_id: Any) -> int | None:
    """Start a session of a task and return its id; None while sessions are not traced."""
    sessions = _sessions()
    return None if sessions is None else sessions.register_session(task_id)


def set_task_id(task_id: Any) -> Token[Any]:
    """Make a task current."""
    return _task_id.set(task_id)


def get_task_id() -> Any:
    """Return the current task's id."""
    return _task_id.get()


def set_session_id(session_id: Any) -> Token[Any]:
    """Make a session current: what is recorded from now on in this context belongs to it."""
    context.current_session.set(None if session_id is None else str(session_id))
    sessions = _sessions()
    session = None if sessions is None else sessions.session(session_id)
    context.active_session.set(session)
    if session is not None:
        context.current_span.set(session)
    return _session_id.set(session_id)


def get_session_id() -> Any:
    """Return the current session's id."""
    return _session_id.get()


class session_context:  # noqa: N801  # AReaL's spelling of a decorator
    """Run a function, or a block, as a new session of the current task.

    An exception fails the session, a cancellation cancels it; a good end is left for `mark_finalized` to judge.
    """

    def __init__(self) -> None:
        self._entered: list[tuple[Any, Any, Any]] = []

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function or a coroutine function."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                with session_context():
                    return await function(*args, **kwargs)

            return call_async

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with session_context():
                return function(*args, **kwargs)

        return call

    def __enter__(self) -> Any:
        session_id = register_session(get_task_id())
        sessions = _sessions()
        session = None if sessions is None else sessions.session(session_id)
        scope = NO_SPAN if session is None else session.use()
        scope.__enter__()
        self._entered.append((session, scope, _session_id.set(session_id)))
        return session_id

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, scope, token = self._entered.pop()
        context.reset(_session_id, token)
        scope.__exit__(kind, error, traceback)
        if session is not None and kind is not None and session.final_status is None:
            status, name = outcome(kind)
            event = {"status": "cancelled" if status == CANCELLED else "failed", "reason": name}
            trace_session_event("mark_finalized", session_id=session._given_id, **event)

    async def __aenter__(self) -> Any:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


def trace_session(phase: str) -> Callable[[Any], Any]:
    """Record each call of a function as a phase of the current session."""

    def decorate(function: Any) -> Any:
        return default_monitor.phase(phase)(function)

    return decorate


class trace_session_phase:  # noqa: N801  # AReaL's spelling of a context manager
    """Record a phase of the current session; `with` and `async with`.

    Args:
        phase: Its name.
        start_payload: Kept with the phase.
        end_payload: Added when it ends; a mapping, or a function that returns one.
    """

    def __init__(
        self,
        phase: str,
        start_payload: Mapping[str, Any] | None = None,
        end_payload: Mapping[str, Any] | Callable[[], Mapping[str, Any] | None] | None = None,
    ) -> None:
        self._end_payload = end_payload
        is_wanted = _is_tracing() and get_session_id() is not None
        self._phase: Phase | NoSession | NoSpan = NO_SPAN
        if is_wanted:
            self._phase = default_monitor.phase(phase, **(start_payload or {}))

    def __enter__(self) -> Any:
        return self._phase.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        payload = self._end_payload() if callable(self._end_payload) else self._end_payload
        for key, value in (payload or {}).items():
            self._phase.set_attribute(key, value)
        self._phase.__exit__(kind, error, traceback)

    async def __aenter__(self) -> Any:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


atrace_session_phase = trace_session_phase


def trace_session_event(method: str, session_id: Any = None, task_id: Any = None, **payload: Any) -> None:
    """Tell what happened to a session, or to all sessions of a task; the current session when neither is given.

    `mark_enqueued`, `mark_execution_start`, `mark_execution_end`, `mark_consumed`, `mark_finalized(status, reason)`,
    `mark_dropped(reason)`; `<phase>_start` and `<phase>_end` for any phase; any other name is kept as an instant.
    """
    sessions = _sessions()
    if sessions is None:
        return
    if session_id is None and task_id is None:
        session_id = get_session_id()
    sessions.record_event(method, session_id, task_id, payload)
