"""AReaL's scopes and phases as spans of the core."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

import msgspec

from rl_insight.integrations.torch_profiler import begin_profile, end_profile
from rl_insight.monitor import default_monitor
from rl_insight.recorder.context import (
    AlsoAsync,
    SpanLike,
    current_session_id,
    current_span,
    current_step,
    reset,
    step_of,
)
from rl_insight.recorder.sessions import Phase
from rl_insight.recorder.spans import NO_SPAN, NoSpan, Span
from rl_insight.schema.names import PHASE_SEGMENT

if TYPE_CHECKING:
    from rl_insight.compat.areal.sessions import SessionTracer

THREAD = "thread.id"
"""The attribute with the native thread id, the `tid` of the trace file."""
thread_names: dict[int, str] = {}
"""Names of recording threads by native id: a thread may end before its trace is written."""
_is_profiling: ContextVar[bool] = ContextVar("rl_insight_areal_profiling", default=False)


class StepSpan(Span, gc=False, eq=False):
    """A scope whose arguments set the training step of everything inside."""

    scope_step: int | None = None
    _step_token: Token[Any] | None = None

    def __enter__(self) -> Span:
        if self.scope_step is not None:
            self._step_token = current_step.set(self.scope_step)
        return Span.__enter__(self)

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        Span.__exit__(self, kind, error, traceback)  # `super()` would cost 100 ns
        token, self._step_token = self._step_token, None
        if token is not None:
            reset(current_step, token)


class ProfiledSpan(StepSpan, gc=False, eq=False):
    """A scope under PyTorch's profiler; the profile is recorded as spans on separate lanes."""

    profiler_args: dict[str, Any] = msgspec.field(default_factory=dict)
    _profile: Any = None
    _profiling_token: Token[Any] | None = None

    def __enter__(self) -> Span:
        self._profile = begin_profile(self.name, self._new_profile)
        if self._profile is not None:
            self._profiling_token = _is_profiling.set(True)
        return super().__enter__()

    def _new_profile(self, profiler: Any) -> Any:
        activities = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
        options = {"activities": activities, "record_shapes": False, "with_stack": False}
        return profiler.profile(**{**options, **self.profiler_args})

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        super().__exit__(kind, error, traceback)
        profile, self._profile = self._profile, None
        if profile is None:
            return
        if self._profiling_token is not None:
            reset(_is_profiling, self._profiling_token)
        end_profile(profile, self.name, step=self.step, starts_ns=self._recorder.clock.wall_ns(self.start))


def new_scope(
    name: str,
    category: str,
    args: Any,
    profile_steps: frozenset[int] = frozenset(),
    profiler_args: Mapping[str, Any] | None = None,
) -> Span | NoSpan:
    """Return the span of a scope; `global_step` in its arguments is the step of everything inside.

    The scope is profiled if its step, or that of an enclosing scope, is one of `profile_steps`.
    """
    recorder = default_monitor._recorder
    if recorder is None:
        return NO_SPAN
    attributes, step = scope_attributes(category, args)
    if profile_steps and not _is_profiling.get() and (current_step.get() if step is None else step) in profile_steps:
        return ProfiledSpan(recorder, name, attributes, scope_step=step, profiler_args=dict(profiler_args or {}))
    if step is None:
        return Span(recorder, name, attributes)
    return StepSpan(recorder, name, attributes, scope_step=step)


def scope_attributes(category: str, args: Any) -> tuple[dict[str, Any], int | None]:
    """Return the attributes of a scope in this thread, and the step in its arguments."""
    attributes = instant_attributes(category, args)
    return attributes, step_of(attributes["global_step"]) if "global_step" in attributes else None


def instant_attributes(category: str, args: Any) -> dict[str, Any]:
    """Return the attributes of an instant in this thread."""
    # The first two checks are for speed: they cover most calls.
    attributes = {} if args is None else dict(args) if args.__class__ is dict or isinstance(args, Mapping) else {}
    attributes["category"] = category
    attributes[THREAD] = thread = threading.get_native_id()
    if thread not in thread_names:
        thread_names[thread] = threading.current_thread().name
    return attributes


class SessionPhase(AlsoAsync):
    """A phase of a session; `with` and `async with`. It does nothing without a session or a tracer."""

    __slots__ = ("_end_payload", "_name", "_phase", "_session_id", "_sessions", "_start_payload", "_tokens")

    def __init__(
        self,
        sessions: SessionTracer | None,
        session_id: Any,
        name: str,
        start_payload: Mapping[str, Any] | None = None,
        end_payload: Mapping[str, Any] | Callable[[], Mapping[str, Any] | None] | None = None,
    ) -> None:
        self._sessions = sessions
        self._session_id = session_id
        self._name = name
        self._start_payload = start_payload
        self._end_payload = end_payload
        self._phase: Phase | None = None

    def __enter__(self) -> SessionPhase:
        recorder = default_monitor._recorder
        if self._sessions is None or self._session_id is None or recorder is None:
            return self
        payload = {**self._start_payload} if self._start_payload else None
        self._phase = phase = Phase(recorder, self._name, payload, PHASE_SEGMENT)
        name = str(self._session_id)
        tokens: tuple[Token[Any], ...] = ()
        # Inside the session's block, a phase is a child of the current span; elsewhere, of the session.
        if current_session_id.get() == name:
            parent: SpanLike | None = current_span.get()
        else:
            parent, tokens = self._sessions.session(self._session_id), (current_session_id.set(name),)
        phase.begin(parent)
        self._tokens = (current_span.set(phase), *tokens)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        phase, self._phase = self._phase, None
        if phase is None:
            return
        if self._end_payload is not None:
            payload = self._end_payload() if callable(self._end_payload) else self._end_payload
            for key, value in (payload or {}).items():
                phase.set_attribute(key, value)
        phase.finish(kind)
        for token in self._tokens:
            reset(token.var, token)
