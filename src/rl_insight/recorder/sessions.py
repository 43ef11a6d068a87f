"""Sessions, their phases, and the tasks they belong to.

A session is a span that its process also describes in snapshots. The session object itself is queued, and the flusher
takes the snapshot, so any number of changes between two flushes costs one snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Token
from typing import TYPE_CHECKING, Any

import msgspec

from rl_insight.recorder.context import (
    ContextScope,
    SpanLike,
    active_session,
    current_session_id,
    current_span,
    current_step,
    current_task,
    get_span,
    reset,
    set_span,
    step_of,
)
from rl_insight.recorder.decorators import decorated
from rl_insight.recorder.losses import safe_text, short_text, shown
from rl_insight.recorder.spans import OK, Span, outcome
from rl_insight.schema.names import PHASE_SEGMENT
from rl_insight.schema.tables import seconds_of
from rl_insight.sessions.model import (
    BAD_OUTCOMES,
    EXECUTION,
    LOST,
    PENDING,
    STATUS_OF_OUTCOME,
    STATUSES,
)

if TYPE_CHECKING:
    from rl_insight.recorder.recorder import Recorder

FINAL_STATUSES = tuple(status for status in STATUSES if status not in (PENDING, LOST))

_MARKS = {
    "submitted": "submit_ts",
    "enqueued": "enqueue_ts",
    "consumed": "wait_return_ts",
    "wait_return": "wait_return_ts",
}
_EXECUTION_MARKS = ("execution_start", "execution_end")
MARKS = (*_MARKS, *_EXECUTION_MARKS)


LANE = "sessions"
"""The lane of sessions that name none; one lane for each session would be too many."""


def checked_step(recorder: Recorder, call: str, step: Any) -> int | None:
    """Return the step that a call was given; None if it is not an integer, which is counted."""
    number = step_of(step)
    if number is None:
        recorder.losses.refuse(
            "steps", "bad_step", f"{call}(step={shown(step)}): a step must be an integer below 2**56."
        )
    return number


class Phase(Span, gc=False, eq=False):
    """An interval of the current session; like any span, but part of the session's record."""

    def begin(self, parent: SpanLike | None) -> None:
        """Start on the session's lane, or on the shared one if the session is in another process."""
        if parent is None or parent.lane is None:
            self.lane = LANE
        Span.begin(self, parent)  # `super()` takes twice as long as the call

    def __call__(self, function: Any) -> Any:
        """Decorate a function: each call is a phase."""
        return decorated(function, self._producer, "phase", (self.name,), self.attributes)


class Task(Span, gc=False, eq=False):
    """One dataset item; sessions that start inside its `with` block belong to it."""

    task_id: Any = None
    _task_token: Token[Any] | None = None

    def __call__(self, function: Any) -> Any:
        """Decorate a function: each call is a task."""
        return decorated(function, self._producer, "task", (self.task_id,), self.attributes)

    def __enter__(self) -> Task:
        super().__enter__()
        if self.task_id is None:
            self.task_id = f"{self.span_id:x}"
        self.attributes = {**(self.attributes or {}), "task_id": self.task_id}
        self._task_token = current_task.set(self.task_id)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        token, self._task_token = self._task_token, None
        if token is not None:
            reset(current_task, token)
        super().__exit__(kind, error, traceback)


class Session(Span, gc=False, eq=False):
    """One sample of a task, from its submission to its end.

    As a `with` block it starts, is current, and ends: accepted, or failed or cancelled by an exception, unless
    `finalize` said otherwise. A session that outlives blocks is started with `submit`, made current with `use`, and
    ended with `finalize`. As a decorator it makes a separate session for each call.
    """

    task_id: Any = None
    final_status: str | None = None
    reason: str | None = None
    marks: dict[str, int] = msgspec.field(default_factory=dict)
    _given_id: Any = None
    _facts: dict[str, Any] | None = None
    _totals: dict[str, float] | None = None
    _counts: list[tuple[str, float]] = msgspec.field(default_factory=list)
    _open_phases: list[Phase] | None = None
    _entered: bool = False
    _dirty: bool = False
    _tokens: tuple[Token[Any], ...] | None = None

    def __call__(self, function: Any) -> Any:
        """Decorate a function: each call is a session."""
        given = {"session_id": self._given_id, "step": self.step, "lane": self.lane, **(self._facts or {})}
        return decorated(function, self._producer, "session", (self.task_id,), {**given, **(self.attributes or {})})

    # -- lifecycle

    def submit(self) -> Session:
        """Start the session without making it current; does nothing if it has started."""
        if self.session_id is not None:
            return self
        step = self.step
        Span.begin(self, get_span())
        if step is not None:
            self.step = step
        given = self._given_id
        self.session_id = f"{self.span_id:x}" if given is None else safe_text(given)
        if self.task_id is None:
            self.task_id = current_task.get()
        self._changed()
        return self

    def __enter__(self) -> Session:
        step = self.step
        self.submit()
        self._entered = not self.end
        tokens = (set_span(self), current_session_id.set(self.session_id), active_session.set(self))
        self._tokens = tokens if step is None else (*tokens, current_step.set(step))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if not self.end:
            self._end(kind)
        tokens, self._tokens = self._tokens, None  # breaks a cycle: token, context, session
        for token in tokens or ():
            try:  # noqa: SIM105  # a call of `reset` would take twice as long
                token.var.reset(token)
            except ValueError:  # exited in a different context than it was entered in: nothing to reset
                pass

    def _end(self, kind: type[BaseException] | None) -> None:
        if self._open_phases is not None:
            self._close_phases(kind)
        if kind is not None:
            self.fail(kind)
        if self.final_status is None:
            status, reason = (OK, None) if kind is None else outcome(kind)
            self._finalize(STATUS_OF_OUTCOME[status], reason)
            self.end = self.marks["finalized_ts"]
            return
        self.end = self._recorder.now()

    def use(self) -> ContextScope[Session]:
        """Make the session current for a `with` block that neither starts nor ends it."""
        self.submit()
        return ContextScope({current_span: self, current_session_id: self.session_id, active_session: self}, self)

    # -- contents

    def mark(self, name: str) -> None:
        """Mark a point in the session's lifecycle; only the first call for each name counts.

        The names are `submitted` (its start, unless marked), `enqueued`, `execution_start` and `execution_end` (a phase
        `execution`, which can start again after its end), `consumed`.
        """
        self.submit()
        if name in _EXECUTION_MARKS:
            if name == "execution_start":
                if not self.has_open_phase(EXECUTION):
                    self.open_phase(EXECUTION)
            else:
                self.close_phase(EXECUTION)
            return
        field = _MARKS.get(name) if name.__class__ is str else None
        if field is None:
            self._refuse("bad_mark", f"mark {short_text(name)!r} was refused: choose one of {', '.join(MARKS)}.")
            return
        if field not in self.marks:
            self.marks[field] = self._recorder.now()
            self._changed()

    def open_phase(self, name: str, payload: Mapping[str, Any] | None = None) -> Phase:
        """Begin a phase without a `with` block; `close_phase`, or the session's end, ends it.

        If several phases of one name are open, the oldest is closed first.
        """
        self.submit()
        phase = Phase(self._recorder, name, {**payload} if payload else None, PHASE_SEGMENT)
        token = current_session_id.set(self.session_id)
        phase.begin(self)
        reset(current_session_id, token)
        self._open_phases = [*(self._open_phases or ()), phase]
        return phase

    def close_phase(self, name: str, payload: Mapping[str, Any] | None = None) -> None:
        """End a phase that `open_phase` began; the payload is merged into the one given there."""
        found = next((phase for phase in self._open_phases or () if phase.name == name), None)
        if found is None:
            self._refuse("phase_not_open", f"cannot close phase {short_text(name)!r} of a session: it is not open.")
            return
        self._open_phases = [phase for phase in self._open_phases or () if phase is not found]
        for key, value in (payload or {}).items():
            found.set_attribute(key, value)
        found.finish()

    def has_open_phase(self, name: str) -> bool:
        """Return whether `open_phase` began a phase of this name that has not ended."""
        return any(phase.name == name for phase in self._open_phases or ())

    def _close_phases(self, kind: type[BaseException] | None = None) -> None:
        phases, self._open_phases = self._open_phases, None
        for phase in phases or ():
            phase.finish(kind)

    def count(self, name: str, amount: float = 1) -> None:
        """Add to one of the session's counters.

        >>> session.count("turns")  # doctest: +SKIP
        """
        if amount.__class__ is not int and amount.__class__ is not float:
            number = self._number(f"counter {short_text(name)!r}", amount)
            if number is None:
                return
            amount = number
        # Appending is atomic: threads count concurrently without a lock, and the flusher adds up.
        self._counts.append((name if name.__class__ is str else safe_text(name), amount))
        self._changed()

    def _number(self, what: str, given: Any) -> float | None:
        try:
            return float(given)
        except Exception:  # noqa: BLE001  # a user's __float__ may raise anything
            self._refuse("not_a_number", f"{what} must be a number, not {type(given).__name__}.")
            return None

    def _add_up(self) -> dict[str, float]:
        """Add up the counters; called only by the flusher."""
        counts = self._counts
        totals = self._totals or {}
        fresh = len(counts)
        for name, amount in counts[:fresh]:
            totals[name] = totals.get(name, 0) + amount
        del counts[:fresh]
        self._totals = totals
        return totals

    def update(
        self,
        *,
        reward: float | None = None,
        tokens: int | None = None,
        model_version: int | str | None = None,
        rollout_stats: Mapping[str, float] | None = None,
        step: int | None = None,
    ) -> None:
        """Set fields of the session's record; omitted ones are unchanged.

        In asynchronous training, the step that trains on a sample is known only after its end: set `step` then, so that
        the record shows how stale the sample was.
        """
        if step is not None and (number := checked_step(self._recorder, "update", step)) is not None:
            self.step = number
        if reward is not None:  # always a float: receivers infer a column's type from its values
            reward = self._number("reward", reward)
        given = {"reward": reward, "tokens": tokens, "model_version": model_version, "rollout_stats": rollout_stats}
        self._facts = {**(self._facts or {}), **{name: value for name, value in given.items() if value is not None}}
        self._changed()

    def finalize(
        self,
        status: str,
        reason: str | None = None,
        *,
        reward: float | None = None,
        tokens: int | None = None,
        model_version: int | str | None = None,
        rollout_stats: Mapping[str, float] | None = None,
    ) -> None:
        """Set the outcome of the session; only the first call counts.

        Outside of its `with` block this also ends the session.

        >>> session.finalize("rejected", "reward below the threshold", reward=0.0)  # doctest: +SKIP

        Args:
            status: `accepted`, `rejected`, `failed`, `dropped` or `cancelled`.
            reason: A short explanation.
            reward: The sample's reward.
            tokens: The number of its tokens.
            model_version: The version of the weights that generated it.
            rollout_stats: The executor's current counts: accepted, enqueued, rejected, running.
        """
        if status not in FINAL_STATUSES:
            self._refuse(
                "bad_status", f"status {short_text(status)!r} was refused: choose one of {', '.join(FINAL_STATUSES)}."
            )
            return
        self.submit()
        if self.final_status is not None:
            self._refuse("finalized_twice", f"a session that was {self.final_status} cannot become {status}: ignored.")
            return
        if not (reward is None and tokens is None and model_version is None and rollout_stats is None):
            self.update(reward=reward, tokens=tokens, model_version=model_version, rollout_stats=rollout_stats)
        self._finalize(status, reason)
        if not self._entered:
            self._close_phases()
            self.end = self.marks["finalized_ts"]

    def finalize_again(self, status: str, reason: str | None = None) -> None:
        """Replace the outcome, for callers whose latest report wins; the span keeps its end time."""
        if status in FINAL_STATUSES:
            self._finalize(status, reason)

    def drop(self, reason: str | None = None) -> None:
        """Finalize the session as dropped."""
        self.finalize("dropped", reason)

    def _finalize(self, status: str, reason: str | None) -> None:
        self.final_status = status
        self.reason = reason
        self.marks["finalized_ts"] = self._recorder.now()
        bad_outcome = BAD_OUTCOMES.get(status)
        if bad_outcome is not None and self.status == OK:
            self.status = bad_outcome
        self._changed()

    # -- for the flusher

    @property
    def reward(self) -> Any:
        """The reward as passed by the caller."""
        return (self._facts or {}).get("reward")

    def snapshot(self, offset_ns: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the current record, with times in seconds since 1970, and the user-supplied values."""
        self._dirty = False  # first: a later change requests another snapshot
        moments = {"submit_ts": self.start, **self.marks}
        known: dict[str, Any] = {name: seconds_of(reading + offset_ns) for name, reading in moments.items()}
        if self._given_id.__class__ is int:  # text has a dedicated column
            known["session_id"] = self._given_id
        if self.step is not None:
            known["step"] = self.step
        given = {
            "task_id": self.task_id,
            "reason": self.reason,
            "counters": dict(self._add_up()),
            **(self._facts or {}),
        }
        return known, {name: value for name, value in given.items() if value is not None and value != {}}

    def _changed(self) -> None:
        if self._dirty:
            return
        recorder = self._recorder
        sessions = recorder.sessions
        if len(sessions) < recorder.max_spans:
            self._dirty = True
            sessions.append(self)
            if len(sessions) > recorder.watermark:
                recorder.relieve(sessions, "sessions", recorder.max_spans)
        else:  # the next change tries again
            recorder.losses.count("sessions", "buffer_full")

    def _refuse(self, reason: str, message: str) -> None:
        self._recorder.losses.refuse("sessions", reason, message)
