"""AReaL's session tracer: numbered tasks and sessions, recorded by the core."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rl_insight.monitor import default_monitor
from rl_insight.recorder.decorators import NoSession
from rl_insight.recorder.sessions import Session
from rl_insight.recorder.spans import CANCELLED, OK

if TYPE_CHECKING:
    from rl_insight.compat.areal.files import ArealFiles

_SERIES_BITS = 22
"""Each tracer counts from a random multiple of 2 to the power of this, so that ids are unique in a run."""
_MARKS = ("enqueued", "consumed", "execution_start", "execution_end")
"""Events of AReaL before it had tasks; the core keeps them as marks."""


class SessionTracer:
    """Registers tasks and sessions, and records their events in the core.

    Session ids are integers that no other process of the run uses. A session is released once it is written to the
    session file; later events are ignored.
    """

    def __init__(self) -> None:
        self._series = int.from_bytes(os.urandom(4), "little") >> 1
        self._next_id: Callable[[], int] = itertools.count(self._series << _SERIES_BITS).__next__
        self._lock = threading.Lock()
        self._sessions: dict[int, Session] = {}
        self._of_task: dict[Any, list[int]] = {}
        self._files: ArealFiles | None = None

    def write_to(self, files: ArealFiles) -> None:
        """Set the files for sessions."""
        self._files = files

    def register_task(self, task_id: Any = None) -> Any:
        """Register a task; return a new id if none is given."""
        return self._next_id() if task_id is None else None

    def register_session(self, task_id: Any) -> int:
        """Start a session of a task; return its id."""
        session_id = self._next_id()
        session = default_monitor.session(task_id=task_id, session_id=session_id)
        if isinstance(session, NoSession):
            return session_id
        session.submit()
        with self._lock:
            self._sessions[session_id] = session
            self._of_task.setdefault(task_id, []).append(session_id)
        return session_id

    def get_session_ids(self, task_id: Any) -> list[int]:
        """Return the ids of a task's unwritten sessions."""
        with self._lock:
            return list(self._of_task.get(task_id, ()))

    def session(self, session_id: Any) -> Session | None:
        """Return an unwritten session."""
        return self._sessions.get(session_id)

    def is_own(self, session_id: str) -> bool:
        """Return whether a session was registered here, not by another process or library of the run."""
        return session_id.isdecimal() and int(session_id) >> _SERIES_BITS == self._series

    def release(self, session_ids: Iterable[str]) -> None:
        """Drop written sessions."""
        with self._lock:
            for number in map(int, session_ids):
                session = self._sessions.pop(number, None)
                if session is None:
                    continue
                of_task = self._of_task.get(session.task_id, [])
                if number in of_task:
                    of_task.remove(number)
                if not of_task:
                    self._of_task.pop(session.task_id, None)

    def record_event(self, session_id: Any, event: Any, **payload: Any) -> None:
        """Record an event of a session; unknown and written sessions are ignored."""
        session = self._sessions.get(session_id)
        if session is None:
            return
        name = str(getattr(event, "value", event)).removeprefix("mark_")
        stats = payload.pop("rollout_stats", None)
        if stats is not None:
            session.update(rollout_stats=stats)
        if name in ("finalized", "dropped"):
            _finalize(session, "dropped" if name == "dropped" else payload.get("status", "accepted"), payload)
        elif name in _MARKS:
            session.mark(name)
        elif name.endswith(("_start", "_end")):
            _apply_phase(session, name, payload)
        else:
            with session.use():
                default_monitor.trace_event(name, **payload)

    def increment_counter(self, session_id: Any, name: str, value: int = 1) -> None:
        """Add to a counter of a session."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.count(name, value)

    def flush(self, force: bool = False) -> None:
        """Write the ready sessions; if forced, all of them, finished or not."""
        if self._files is None:
            return
        if force:
            self._finalize_escaped()
        self._files.save(everything=force)

    def _finalize_escaped(self) -> None:
        """Finalize sessions whose workflow raised, if no executor did."""
        with self._lock:
            sessions = [session for session in self._sessions.values() if session.status != OK]
        for session in sessions:
            if session.final_status is None:
                session.finalize("cancelled" if session.status == CANCELLED else "failed", session.error)

    def reset(self) -> None:
        """Write and drop all sessions."""
        self.flush(force=True)
        with self._lock:
            self._sessions.clear()
            self._of_task.clear()

    def __len__(self) -> int:
        return len(self._sessions)


def _finalize(session: Session, status: Any, payload: dict[str, Any]) -> None:
    reason = payload.get("reason", payload.get("rejection_reason"))
    if session.final_status is None:
        session.finalize(str(status), reason, reward=payload.get("reward"))
    else:  # the executor's last status wins
        session.finalize_again(str(status), reason)


def _apply_phase(session: Session, name: str, payload: dict[str, Any]) -> None:
    phase, _, moment = name.rpartition("_")
    if moment == "start":
        session.open_phase(phase, payload)
        return
    if not session.has_open_phase(phase):  # an end without a start: a phase of zero length
        opened = session.open_phase(phase, payload)
        opened.end = opened.start
    session.close_phase(phase, payload)
