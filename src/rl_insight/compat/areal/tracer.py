"""The tracer behind AReaL's functions: names of tasks and sessions, and the files they end in."""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from rl_insight.compat._recording import start_recording
from rl_insight.compat.areal.config import AReaLConfig
from rl_insight.compat.areal.files import ArealFiles
from rl_insight.integrations.torch_profiler import TorchProfiler
from rl_insight.monitor import default_monitor
from rl_insight.recorder.session_calls import NoSession
from rl_insight.recorder.sessions import Session

_MAX_TASKS = 100_000
"""Tasks that may be under way; beyond it the oldest are let go."""
_MARKS = {"enqueued": "enqueued", "consumed": "consumed", "wait_return": "consumed", "submitted": "submitted"}


class _Task:
    """A task that is under way: what happened before its sessions existed, and its sessions."""

    __slots__ = ("marks", "sessions")

    def __init__(self, submitted: int) -> None:
        self.marks = {"submit_ts": submitted}
        self.sessions: dict[int, Session] = {}


class SessionTracer:
    """Registers tasks and sessions, and passes what happens to them on to the core.

    Ids are integers that no other process of the run makes. A session is let go when nothing more is to come for it.
    """

    def __init__(self) -> None:
        base = (int.from_bytes(os.urandom(4), "little") >> 1) << 22
        self._next_id: Callable[[], int] = itertools.count(base).__next__
        self._lock = threading.Lock()
        self._tasks: OrderedDict[Any, _Task] = OrderedDict()
        self._task_of: dict[Any, Any] = {}

    def register_task(self) -> int:
        """Return the id of a new task."""
        task_id = self._next_id()
        with self._lock:
            self._add_task(task_id)
        return task_id

    def _add_task(self, task_id: Any) -> _Task:
        recorder = default_monitor._recorder
        task = self._tasks[task_id] = _Task(0 if recorder is None else recorder.now())
        if len(self._tasks) > _MAX_TASKS:
            _, oldest = self._tasks.popitem(last=False)
            for session_id in oldest.sessions:
                self._task_of.pop(session_id, None)
        return task

    def register_session(self, task_id: Any) -> int:
        """Start a session of a task; returns its id."""
        session_id = self._next_id()
        session = default_monitor.session(task_id=task_id, session_id=session_id)
        if isinstance(session, NoSession):
            return session_id
        session.submit()
        with self._lock:
            task = self._tasks.get(task_id) or self._add_task(task_id)
            session.marks.update(task.marks)
            task.sessions[session_id] = session
            self._task_of[session_id] = task_id
        return session_id

    def session(self, session_id: Any) -> Session | None:
        """Return a session that is under way."""
        task = self._tasks.get(self._task_of.get(session_id))
        return None if task is None else task.sessions.get(session_id)

    def record_event(self, method: str, session_id: Any, task_id: Any, payload: dict[str, Any]) -> None:
        """Pass an event on to a session, or to all sessions of a task."""
        name = method.removeprefix("mark_").removeprefix("trace_")
        with self._lock:
            task = self._tasks.get(task_id) if session_id is None else None
            found = (
                [self.session(session_id)] if session_id is not None else list(task.sessions.values() if task else ())
            )
            if task is not None and name == "enqueued":
                recorder = default_monitor._recorder
                task.marks.setdefault("enqueue_ts", 0 if recorder is None else recorder.now())
        for session in found:
            if session is not None:
                self._apply(session, name, payload)
        if task is not None and not task.sessions and name in ("finalized", "dropped", "consumed", "wait_return"):
            with self._lock:
                self._tasks.pop(task_id, None)

    def _apply(self, session: Session, name: str, payload: dict[str, Any]) -> None:
        stats = payload.pop("rollout_stats", None) or payload.pop("stats", None)
        if stats is not None:
            session.update(rollout_stats=stats)
        if name == "finalized":
            session.finalize(
                str(payload.get("status", "accepted")), payload.get("reason"), reward=payload.get("reward")
            )
        elif name == "dropped":
            session.drop(payload.get("reason"))
        elif name in _MARKS:
            session.mark(_MARKS[name])
        elif name.endswith(("_start", "_end")):
            self._apply_phase(session, name, payload)
        else:
            with session.use():
                default_monitor.trace_event(name, **payload)
        self._release(session)

    def _apply_phase(self, session: Session, name: str, payload: dict[str, Any]) -> None:
        phase, _, moment = name.rpartition("_")
        if moment == "start":
            session.open_phase(phase, payload)
        else:
            session.close_phase(phase, payload)

    def _release(self, session: Session) -> None:
        is_consumed = "wait_return_ts" in session.marks
        if session.final_status is None or (session.final_status == "accepted" and not is_consumed):
            return
        number = session._given_id
        with self._lock:
            task_id = self._task_of.pop(number, None)
            task = self._tasks.get(task_id)
            if task is not None:
                task.sessions.pop(number, None)
                if not task.sessions:
                    del self._tasks[task_id]

    def __len__(self) -> int:
        return len(self._tasks)


class PerfTracer:
    """One process's tracer: from `configure` to `reset`."""

    def __init__(self, config: AReaLConfig, *, rank: int, role: str | None) -> None:
        self.config = config
        self.rank = rank
        self.role = role
        self.sessions: SessionTracer | None = None
        self._files: ArealFiles | None = None
        self._profiler: TorchProfiler | None = None
        if config.enabled:
            self._start()

    @property
    def enabled(self) -> bool:
        """Whether anything is recorded."""
        return self._files is not None

    def _start(self) -> None:
        config, role, rank = self.config, self.role, self.rank
        run: dict[str, Any] = {}
        if config.experiment_name:
            run = {"project": config.experiment_name, "experiment_name": config.trial_name or config.experiment_name}
        flusher = start_recording(role=role, rank=rank, **run)
        if flusher is None:
            return
        if config.sessions_enabled:
            self.sessions = SessionTracer()
        sessions = config.directory("session_tracer", role) / f"sessions-r{rank}.jsonl"
        self._files = ArealFiles(
            flusher,
            traces=config.directory("perf_tracer", role) / f"traces-r{rank}.jsonl",
            sessions=sessions if self.sessions is not None else None,
            rank=rank,
            role=role,
            threshold=config.flush_threshold,
        )
        if config.profile_steps:
            self._profiler = TorchProfiler(config.profile_steps)
            self._profiler.begin_step(0)

    def save(self, step: int | None = None, *, force: bool = False) -> None:
        """Write the files: in the background at every `save_interval`-th step, at once when forced."""
        if self._files is None:
            return
        if self._profiler is not None and step is not None:
            self._profiler.begin_step(step + 1)
        if force:
            self._files.save()
        elif step is None or (step + 1) % self.config.save_interval == 0:
            self._files.save_soon()

    def close(self) -> None:
        """Write everything and stop."""
        if self._profiler is not None:
            self._profiler.close()
        if self._files is not None:
            self._files.close()
            self._files = None
