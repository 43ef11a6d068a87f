"""The calls that training code makes for sessions, phases and tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rl_insight.recorder import context
from rl_insight.recorder.decorators import NoSession
from rl_insight.recorder.sessions import LANE, Phase, Session, Task, checked_step
from rl_insight.schema.names import PHASE_SEGMENT, SESSION_SEGMENT, TASK_SEGMENT

if TYPE_CHECKING:
    from rl_insight.recorder.recorder import Recorder


def nothing_to_join() -> None:
    """Return None: there is no run to join. A disabled call spends 30 ns here."""


class SessionProducer:
    """The session calls of a producer; nearly free while `_recorder` is None."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._join: Callable[[], Recorder | None] = self._join_parent
        """Called while nothing is recorded: tries once to join the run of a parent process."""

    def _join_parent(self) -> Recorder | None:
        """Start recording if a parent process exported its run; see `Monitor`."""
        self._join = nothing_to_join
        return None

    def active_recorder(self) -> Recorder | None:
        """Return the recorder of this process, joining a parent's run if necessary; None while nothing is recorded."""
        return self._recorder or self._join()

    def session(
        self,
        task_id: Any = None,
        *,
        session_id: Any = None,
        step: int | None = None,
        group_id: int | str | None = None,
        model_version: int | str | None = None,
        rollout_stats: Mapping[str, float] | None = None,
        lane: str | None = None,
        **attributes: Any,
    ) -> Session | NoSession:
        """Record a session: one sample of a task. A context manager (sync or async) and a decorator.

        The block ends accepted, failed by an exception, or cancelled, unless `finalize` says otherwise. Everything
        recorded inside belongs to the session, including in tasks it starts, and in other processes through `inject`.

        >>> with session(task_id="gsm8k-17", step=7) as s:
        ...     with phase("generate", tokens=512):
        ...         s.count("turns")
        ...     s.finalize("accepted", reward=1.0)

        Args:
            task_id: The dataset item; that of the enclosing `task` if omitted.
            session_id: A unique ID in the run; generated if omitted.
            step: The training step of everything inside.
            group_id: The group in which rewards are compared, as in GRPO; the task ID if omitted.
            model_version: The version of the weights that generate the sample.
            rollout_stats: The counts of the executor: accepted, enqueued, rejected, running.
            lane: The timeline lane; a lane shared by all sessions if omitted.
            attributes: Other attributes of the session's span.
        """
        recorder = self._recorder
        if recorder is None and (recorder := self._join()) is None:
            given = {"session_id": session_id, "step": step, "group_id": group_id, "model_version": model_version}
            given |= {"rollout_stats": rollout_stats, "lane": lane, **attributes}
            return NoSession(self, "session", (task_id,), given)
        facts = None
        if model_version is not None or rollout_stats is not None or group_id is not None:
            facts = {"group_id": group_id, "model_version": model_version, "rollout_stats": rollout_stats}
        return Session(
            recorder,
            "session",
            attributes,
            SESSION_SEGMENT,
            lane or LANE,
            self,
            step=None if step is None else checked_step(recorder, "session", step),
            task_id=task_id,
            _given_id=session_id,
            _facts=facts,
        )

    def phase(self, name: str, /, **payload: Any) -> Phase | NoSession:
        """Record a phase of the current session. A context manager (sync or async) and a decorator.

        `execution`, `generate`, `reward` and `toolcall` are known; any other name works the same way. Phases may
        overlap, even under the same name.

        >>> with phase("toolcall", tool="search"):
        ...     pass
        >>> @phase("reward")
        ... def score(answer): ...

        Args:
            name: The name of the phase.
            payload: Attributes of the phase, included in the session's record.
        """
        recorder = self._recorder
        if recorder is None and (recorder := self._join()) is None:
            return NoSession(self, "phase", (name,), payload)
        return Phase(recorder, name, payload, PHASE_SEGMENT, None, self)

    def task(self, task_id: Any = None, /, **attributes: Any) -> Task | NoSession:
        """Record a task: one dataset item. Sessions that start inside belong to it.

        >>> with task("gsm8k-17"):
        ...     with session():
        ...         pass

        Args:
            task_id: The ID of the item; generated if omitted.
            attributes: Other attributes of the task's span.
        """
        recorder = self._recorder
        if recorder is None and (recorder := self._join()) is None:
            return NoSession(self, "task", (task_id,), attributes)
        return Task(recorder, "task", attributes, TASK_SEGMENT, LANE, self, task_id=task_id)

    def current_session(self) -> Session | None:
        """Return the session of this process whose block is running; None outside of one.

        >>> with session() as s:
        ...     assert current_session() is s
        """
        session: Session | None = context.active_session.get()
        if session is None or session.session_id != context.current_session_id.get():
            return None
        return session
