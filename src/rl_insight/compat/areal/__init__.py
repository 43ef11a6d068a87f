"""AReaL's `perf_tracer` on top of RL-Insight: change the import, keep the calls.

>>> from rl_insight.compat import areal as perf_tracer
>>> perf_tracer.is_configured()
False
>>> with perf_tracer.trace_scope("train.step", category="compute", args={"global_step": 3}):
...     pass
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from rl_insight.compat.areal.installing import install
from rl_insight.compat.areal.names import PerfTraceCategory, SessionTraceEvent, category_name
from rl_insight.compat.areal.scopes import SessionPhase, new_scope
from rl_insight.compat.areal.sessions import SessionTracer
from rl_insight.compat.areal.tracer import PerfTracer
from rl_insight.recorder import context
from rl_insight.recorder.decorators import surrounded
from rl_insight.recorder.sessions import Session
from rl_insight.recorder.spans import NO_SPAN, NoSpan, Span

__all__ = [
    "GLOBAL_TRACER",
    "Category",
    "PerfTraceCategory",
    "PerfTracer",
    "SessionTraceEvent",
    "SessionTracer",
    "atrace_scope",
    "atrace_session_phase",
    "configure",
    "get_session_id",
    "get_session_tracer",
    "get_task_id",
    "get_tracer",
    "install",
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

Category = PerfTraceCategory
Payload = Mapping[str, Any] | None

GLOBAL_TRACER: PerfTracer | None = None
"""The tracer from `configure`; None before it and after `reset`."""
_task_id: ContextVar[Any] = ContextVar("rl_insight_areal_task", default=None)
_session_id: ContextVar[Any] = ContextVar("rl_insight_areal_session", default=None)


# -- lifecycle


def configure(config: Any, *, rank: int, role: str | None = None) -> PerfTracer:
    """Start the tracer of this process; once, until `reset`. See `PerfTracer` for the arguments.

    Raises:
        RuntimeError: the tracer is already configured.
    """
    global GLOBAL_TRACER  # noqa: PLW0603  # one tracer per process, under this name
    if GLOBAL_TRACER is not None:
        raise RuntimeError("the tracer is already configured. Call reset() first.")
    GLOBAL_TRACER = PerfTracer(config, rank=rank, role=role)
    return GLOBAL_TRACER


def is_configured() -> bool:
    """Return whether `configure` was called."""
    return GLOBAL_TRACER is not None


def reset() -> None:
    """Write everything and drop the tracer; does nothing without one."""
    global GLOBAL_TRACER  # see configure
    tracer, GLOBAL_TRACER = GLOBAL_TRACER, None
    if tracer is not None:
        tracer.close()


def get_tracer() -> PerfTracer:
    """Return the tracer.

    Raises:
        RuntimeError: `configure` was not called.
    """
    if GLOBAL_TRACER is None:
        raise RuntimeError("the tracer is not configured. Call configure(config, rank=...) first.")
    return GLOBAL_TRACER


def get_session_tracer() -> SessionTracer | None:
    """Return the session tracer; None if it is off or not configured."""
    return None if GLOBAL_TRACER is None else GLOBAL_TRACER.session_tracer


def save(*, step: int | None = None, force: bool = False) -> None:
    """Write the files: in the background at every `save_interval`-th step; at once, with sessions, if forced."""
    if GLOBAL_TRACER is not None:
        GLOBAL_TRACER.save(step=step, force=force)


# -- scopes


def trace_scope(
    name: str,
    *,
    category: Any = None,
    enable_profiler: bool = False,
    profiler_args: Payload = None,
    args: Payload = None,
) -> Span | NoSpan:
    """Record a scope; `with` and `async with`. See `PerfTracer.trace_scope`."""
    tracer = GLOBAL_TRACER
    if tracer is None or not tracer.enabled:
        return NO_SPAN
    if not enable_profiler:
        return new_scope(name, category_name(category), args)
    return tracer.trace_scope(
        name, category=category, enable_profiler=enable_profiler, profiler_args=profiler_args, args=args
    )


atrace_scope = trace_scope


def instant(name: str, *, category: Any = None, args: Payload = None) -> None:
    """Record an instant."""
    if GLOBAL_TRACER is not None:
        GLOBAL_TRACER.instant(name, category=category, args=args)


def trace_perf(name: str, *, category: Any = None) -> Callable[[Any], Any]:
    """Record each call of a function or a coroutine function."""
    return _around_calls(lambda: trace_scope(name, category=category))


def _around_calls(make: Callable[[], Any]) -> Callable[[Any], Any]:
    """Return a decorator that runs each call in a new context manager."""
    return lambda function: surrounded(function, lambda _args, _kwargs: make())


# -- tasks and sessions


def register_task(task_id: Any = None) -> Any:
    """Register a task; without an id, as in AReaL up to v0.5.1, return a new one."""
    sessions = get_session_tracer()
    return None if sessions is None else sessions.register_task(task_id)


def register_session(task_id: Any) -> int | None:
    """Start a session of a task and return its id; None if sessions are not traced."""
    sessions = get_session_tracer()
    return None if sessions is None else sessions.register_session(task_id)


def set_task_id(task_id: Any) -> None:
    """Make a task current; None clears it."""
    _task_id.set(task_id)


def get_task_id() -> Any:
    """Return the current task's id."""
    return _task_id.get()


def set_session_id(session_id: Any) -> None:
    """Make a session current, so that later records in this context belong to it; None clears it."""
    _session_id.set(session_id)
    context.current_session_id.set(None if session_id is None else str(session_id))
    sessions = get_session_tracer()
    session = None if sessions is None else sessions.session(session_id)
    context.active_session.set(session)
    if session is not None or isinstance(context.current_span.get(), Session):
        context.current_span.set(session)


def get_session_id() -> Any:
    """Return the current session's id."""
    return _session_id.get()


class _SessionScope:
    """A new session of the current task for one call; `get_session_id` keeps returning it afterward."""

    def __enter__(self) -> None:
        sessions, task_id = get_session_tracer(), get_task_id()
        session_id = None if task_id is None or sessions is None else sessions.register_session(task_id)
        self._session = None if sessions is None else sessions.session(session_id)
        _session_id.set(session_id)
        self._scope: Any = NO_SPAN if self._session is None else self._session.use()
        self._scope.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if kind is not None and self._session is not None:
            self._session.fail(kind)  # the executor finalizes the session; this keeps the reason
        self._scope.__exit__(kind, error, traceback)


def session_context() -> Callable[[Any], Any]:
    """Run each call of a function as a new session of the current task."""
    return _around_calls(_SessionScope)


def trace_session(phase: str) -> Callable[[Any], Any]:
    """Record each call of a function as a phase of the current session."""
    return _around_calls(lambda: trace_session_phase(phase))


def trace_session_phase(
    *phase_or_session: Any, phase: str | None = None, start_payload: Payload = None, end_payload: Any = None
) -> SessionPhase:
    """Record a phase of the current session; `with` and `async with`.

    Args:
        phase_or_session: The phase's name; in AReaL v0.4.1 the session's id comes first.
        phase: The phase's name, as a keyword.
        start_payload: Attached to the phase.
        end_payload: Added at the end; a mapping, or a function that returns one.
    """
    if phase is None and len(phase_or_session) == 1:  # the signature of all releases but one
        tracer = GLOBAL_TRACER
        sessions = None if tracer is None else tracer.session_tracer
        return SessionPhase(sessions, _session_id.get(), str(phase_or_session[0]), start_payload, end_payload)
    given = [*phase_or_session] if phase is None else [*phase_or_session, phase]
    session_id = given.pop(0) if len(given) > 1 and not isinstance(given[0], str) else get_session_id()
    if not 1 <= len(given) <= 3:
        raise TypeError("trace_session_phase() takes a phase, start_payload and end_payload.")
    payloads = [*given[1:], *(start_payload, end_payload)[len(given) - 1 :]]
    return SessionPhase(get_session_tracer(), session_id, str(given[0]), *payloads)


atrace_session_phase = trace_session_phase


def trace_session_event(method: Any, session_id: Any = None, task_id: Any = None, **payload: Any) -> None:
    """Record an event of one session, or of all sessions of a task.

    `mark_finalized(status, reason)`, `mark_<phase>_start`, `mark_<phase>_end`, `increment_counter(name, value=1)`; any
    other name is recorded as an instant. The session's id may come first, as in AReaL before tasks.
    """
    if not isinstance(method, str) and isinstance(session_id, str):
        method, session_id = session_id, method
    sessions = get_session_tracer()
    if sessions is None or (session_id is None and task_id is None):
        return
    found = [session_id] if session_id is not None else sessions.get_session_ids(task_id)
    for number in found:
        if method == "increment_counter":
            sessions.increment_counter(number, **payload)
        else:
            sessions.record_event(number, method, **payload)
