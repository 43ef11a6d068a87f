"""AReaL's two files: a trace of this process, and the records of its sessions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rl_insight.compat._recording import BatchFiles
from rl_insight.schema import Batch
from rl_insight.schema.records import EventRecord, SpanRecord, records
from rl_insight.schema.sessions import ACCEPTED, PENDING, SESSION_SEGMENT, TASK_SEGMENT, SessionBook, record_line

if TYPE_CHECKING:
    from rl_insight.recorder.flusher import Flusher

_NOT_TRACED = (SESSION_SEGMENT, TASK_SEGMENT)


class ArealFiles(BatchFiles):
    """Appends Chrome trace events to one file and session records to another, as batches come.

    A session is written when nothing more is to come: it was rejected, failed, cancelled or dropped, or accepted and
    consumed. At the end of the process every session is written as far as it got.
    """

    def __init__(
        self, flusher: Flusher, *, traces: Path, sessions: Path | None, rank: int, role: str | None, threshold: int
    ) -> None:
        self._traces = traces
        self._sessions = sessions
        self._rank = rank
        self._threshold = threshold
        self._book = SessionBook()
        self._ready: dict[str, None] = {}
        self._foreign: set[str] = set()
        self._lanes: dict[str | None, int] = {}
        self._introduced = False
        self._process_name = f"{role or 'rank'} {rank}"
        super().__init__(flusher)

    def take(self, batch: Batch) -> bool:
        """Turn a batch into trace events, and take note of its sessions."""
        lines = self.lines.setdefault(self._traces, [])
        lines += [msgspec.json.encode(event) for record in records(batch) for event in self._events(record)]
        if self._sessions is None:
            return False
        for session_id in self._book.add(batch):
            entry = self._book.entry(session_id)
            status = entry.snapshot.status if entry is not None else None
            if entry is None or status in (None, PENDING):
                continue
            if status != ACCEPTED or entry.snapshot.wait_return_ts is not None:
                self._ready[session_id] = None
        if len(self._ready) < self._threshold:
            return False
        self._take_ready()
        return True

    def gather(self, *, everything: bool) -> None:
        """Add the lines of the sessions that are complete, or of all that this process owns."""
        self._take_ready()
        foreign = {session_id for session_id in self._book.ids() if not self._is_owned(session_id)}
        # An owner's word may come one batch after a phase; what is still without one then belongs to another process.
        for session_id in foreign & self._foreign:
            self._book.forget(session_id)
        self._foreign = foreign
        if everything:
            self._ready = {session_id: None for session_id in self._book.ids() if self._is_owned(session_id)}
            self._take_ready()

    def _is_owned(self, session_id: str) -> bool:
        entry = self._book.entry(session_id)
        return entry is not None and entry.snapshot_ns is not None

    def _take_ready(self) -> None:
        if self._sessions is None:
            return
        lines = self.lines.setdefault(self._sessions, [])
        for session_id in self._ready:
            record = self._book.record(session_id)
            if record is not None:
                record["rank"] = self._rank
                lines.append(record_line(record))
            self._book.forget(session_id)
        self._ready = {}

    def _events(self, record: Any) -> list[dict[str, Any]]:
        if isinstance(record, SpanRecord):
            if record.duration_ns is None or record.segment in _NOT_TRACED:
                return []
            timing = {"ph": "X", "ts": record.start_ns / 1e3, "dur": record.duration_ns / 1e3}
            return self._event(record, timing)
        if isinstance(record, EventRecord):
            return self._event(record, {"ph": "i", "s": "t", "ts": record.time_ns / 1e3})
        return []

    def _event(self, record: SpanRecord | EventRecord, timing: dict[str, Any]) -> list[dict[str, Any]]:
        arguments = dict(record.attributes)
        category = arguments.pop("category", "misc")
        if record.session_id is not None:
            arguments["session_id"] = record.session_id
        if record.step is not None:
            arguments.setdefault("step", record.step)
        introduction = self._introduce(record.lane)
        event = {"name": record.name, "cat": category, **timing, "pid": self._rank, "tid": self._lanes[record.lane]}
        return [*introduction, {**event, "args": arguments}]

    def _introduce(self, lane: str | None) -> list[dict[str, Any]]:
        """Return the events that name this process and a lane, the first time they are met."""
        found: list[dict[str, Any]] = []
        if not self._introduced:
            self._introduced = True
            found.append(_name_event("process_name", self._rank, 0, self._process_name))
        if lane not in self._lanes:
            self._lanes[lane] = len(self._lanes)
            found.append(_name_event("thread_name", self._rank, self._lanes[lane], lane or "main"))
        return found


def _name_event(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
