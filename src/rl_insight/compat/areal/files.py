"""AReaL's two files: the trace of this process, and the records of its sessions."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import msgspec

from rl_insight.compat._recording import BatchFiles
from rl_insight.compat.areal.scopes import THREAD, thread_names
from rl_insight.schema import Batch
from rl_insight.schema.names import PHASE_SEGMENT, SESSION_SEGMENT, TASK_SEGMENT
from rl_insight.schema.records import EventRecord, SpanRecord, records
from rl_insight.sessions.model import PENDING
from rl_insight.sessions.records import SessionBook, SessionRecord, record_line

if TYPE_CHECKING:
    from rl_insight.compat.areal.config import AReaLConfig
    from rl_insight.compat.areal.sessions import SessionTracer
    from rl_insight.recorder.flusher import Flusher

_NOT_TRACED = (SESSION_SEGMENT, TASK_SEGMENT, PHASE_SEGMENT)
"""Segments that go to the session file."""
_PROFILER_LANE = "torch/"
_LANE_TIDS = 1 << 30
"""First thread id of lanes that are not threads, above those of Linux."""


class ArealFiles(BatchFiles):
    """Appends Chrome trace events to one file and session records to another, batch by batch.

    A session is ready when it is finalized. Ready sessions are written when there are `flush_threshold` of them; all
    sessions, when the caller forces it or the process exits.
    """

    def __init__(
        self, flusher: Flusher, config: AReaLConfig, *, rank: int, role: str | None, sessions: SessionTracer | None
    ) -> None:
        self._traces = config.directory("perf_tracer", role) / f"traces-r{rank}.jsonl"
        self._sessions = config.directory("session_tracer", role) / f"sessions-r{rank}.jsonl"
        self._tracer = sessions
        self._identity: dict[str, Any] = {"rank": rank} if role is None else {"rank": rank, "role": role}
        self._threshold = config.flush_threshold
        self._book = SessionBook()
        self._errors: dict[str, str] = {}
        self._ready: dict[str, None] = {}
        self._written_unfinished: set[str] = set()
        self._unknown: set[str] = set()
        self._pid = os.getpid()
        self._threads: dict[Any, int] = {}
        self._is_introduced = False
        super().__init__(flusher)

    def take(self, batch: Batch) -> bool:
        """Turn a batch into trace events, and track its sessions."""
        for record in records(batch):
            if isinstance(record, (SpanRecord, EventRecord)):
                self._take_record(record)
        tracer = self._tracer
        if tracer is None:
            return False
        for session_id in self._book.add(batch):
            if not tracer.is_own(session_id):
                self._book.pop(session_id, None)
                continue
            entry = self._book.get(session_id)
            if entry is not None and entry.snapshot.status not in (None, PENDING):
                self._ready[session_id] = None
        if len(self._ready) < self._threshold:
            return False
        self._take_ready()
        return True

    def gather(self, *, everything: bool) -> None:
        """Add the lines of all sessions of this tracer if `everything`."""
        if not everything:
            return
        self._take_ready()
        unknown = {session_id for session_id in self._book if not self._has_snapshot(session_id)}
        # A session's snapshot may arrive one batch after a phase; if it has not, the session was written before.
        for session_id in unknown & self._unknown:
            self._book.pop(session_id, None)
        self._unknown = unknown
        self._ready = {session_id: None for session_id in self._book if self._has_snapshot(session_id)}
        self._take_ready()

    def _has_snapshot(self, session_id: str) -> bool:
        entry = self._book.get(session_id)
        return entry is not None and entry.snapshot_ns is not None

    # -- sessions

    def _take_ready(self) -> None:
        if self._tracer is None:
            return
        lines = self.lines.setdefault(self._sessions, [])
        finished = []
        for session_id in self._ready:
            entry = self._book.pop(session_id, None)
            error = self._errors.pop(session_id, None)
            if entry is None:
                continue
            record = entry.record()
            is_finished = record["status"] != PENDING
            if is_finished:
                finished.append(session_id)
            if session_id not in self._written_unfinished:
                lines.append(self._session_line(record, error))
            if is_finished:
                self._written_unfinished.discard(session_id)
            else:
                self._written_unfinished.add(session_id)
        self._ready = {}
        self._tracer.release(finished)

    def _session_line(self, record: SessionRecord, error: str | None) -> bytes:
        record.pop("role", None)
        record.update(self._identity)
        if error is not None:
            record["error"] = error
        if counters := record.pop("counters", None):
            counted = {name: count for name, count in counters.items() if count}
            record |= {"counters": counted} if counted else {}
        for phases in record.get("phases", {}).values():
            for phase in phases:
                phase.setdefault("end_ts", None)
        return record_line(record)

    # -- traces

    def _take_record(self, record: SpanRecord | EventRecord) -> None:
        if isinstance(record, EventRecord):
            self._add_event(record, {"ph": "i", "s": "t", "ts": record.time_ns // 1000}, None)
            return
        tracer, session_id, error = self._tracer, record.session_id or "", record.error
        is_session = tracer is not None and record.segment == SESSION_SEGMENT and tracer.is_own(session_id)
        if is_session and error is not None:
            self._errors[session_id] = error
        if record.duration_ns is not None and record.segment not in _NOT_TRACED:
            timing = {"ph": "X", "ts": record.start_ns // 1000, "dur": max(1, record.duration_ns // 1000)}
            self._add_event(record, timing, error)

    def _add_event(self, record: SpanRecord | EventRecord, timing: dict[str, Any], error: str | None) -> None:
        arguments = {**self._identity, **record.attributes}
        category = arguments.pop("category", "misc")
        thread = arguments.pop(THREAD, None)
        if error is not None:
            arguments.setdefault("exception", error.rpartition(".")[2])
        if record.session_id is not None:
            arguments["session_id"] = record.session_id
        if record.step is not None:
            arguments.setdefault("step", record.step)
        tid = self._thread(record.lane if thread is None else thread)
        self._add_line(
            {"name": record.name, **timing, "pid": self._pid, "tid": tid, "cat": category, "args": arguments}
        )

    def _thread(self, thread: Any) -> int:
        """Return the number of a thread or a lane; on first use, write its name and that of this process."""
        if not self._is_introduced:
            self._is_introduced = True
            role, rank = self._identity.get("role"), self._identity["rank"]
            name = f"Rank {rank}, Process" if role is None else f"[{role}] Rank {rank}, Process"
            self._add_metadata("process_name", {"name": name})
            self._add_metadata("process_sort_index", {"sort_index": rank})
        tid = self._threads.get(thread)
        if tid is None:
            tid, name = self._new_thread(thread)
            self._threads[thread] = tid
            # With rank and role, AReaL's converter keeps the name; it generates those of processes.
            self._add_metadata("thread_name", {"name": name, **self._identity}, tid=tid)
        return tid

    def _new_thread(self, thread: Any) -> tuple[int, str]:
        if isinstance(thread, int):
            return thread, thread_names.get(thread, f"Thread {thread}")
        if isinstance(thread, str) and thread.startswith(_PROFILER_LANE):
            known = sum(1 for tid in self._threads.values() if tid < 0)
            return -known - 1, _profiler_name(thread)
        return _LANE_TIDS + len(self._threads), str(thread or "main")

    def _add_metadata(self, kind: str, arguments: dict[str, Any], **place: int) -> None:
        self._add_line({"name": kind, "ph": "M", "pid": self._pid, **place, "args": arguments})

    def _add_line(self, event: dict[str, Any]) -> None:
        self.lines.setdefault(self._traces, []).append(msgspec.json.encode(event))


def _profiler_name(lane: str) -> str:
    """Return the name of a lane of the profiler.

    >>> _profiler_name("torch/python/stream 7"), _profiler_name("torch/python/thread 70 (python)")
    ('[Profiler Stream 7]', '[Profiler Thread 70]')
    """
    name = lane.rpartition("/")[2]
    number = re.search(r"\d+", name)
    kind = "Stream" if "stream" in name.lower() else "Thread"
    return f"[Profiler {kind} {number.group() if number else name}]"
