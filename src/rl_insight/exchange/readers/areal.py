"""AReaL session records as JSON Lines: one line a session, with its phases.

A session becomes a snapshot and a span, each of its phases a span inside that. The columns of the batch are made with
NumPy from plain lists: tuples for each row would cost more than reading the JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rl_insight.exchange.readers.base import FileContext, Reader, decoded_lines, number_of
from rl_insight.schema import NO_STEP, VERSION, Batch, Process
from rl_insight.schema.batch import Sessions, Spans
from rl_insight.schema.sessions import PENDING, PHASE_SEGMENT, SESSION_SEGMENT, STATUSES

_LANE = "sessions"
_WALL_CLOCK_S = 1e9
_STEP_LIMIT = 2**62
_NOTHING = msgspec.Raw()
_NULL = b"null"


class _Phase(msgspec.Struct, gc=False):
    start_ts: float | None = None
    end_ts: float | None = None
    outcome: str | None = None
    payload: msgspec.Raw = _NOTHING


class _Line(msgspec.Struct, gc=False):
    """What is read of a line; durations are left out, because they follow from the rest."""

    session_id: int | str
    task_id: Any = None
    rank: int | None = None
    role: str | None = None
    status: str = PENDING
    reason: Any = None
    submit_ts: float | None = None
    enqueue_ts: float | None = None
    wait_return_ts: float | None = None
    finalized_ts: float | None = None
    rollout_stats: msgspec.Raw = _NOTHING
    phases: dict[str, list[_Phase] | None] | None = None
    counters: msgspec.Raw = _NOTHING
    step: int | None = None
    model_version: Any = None
    reward: Any = None
    tokens: Any = None


class _Snapshot(msgspec.Struct, omit_defaults=True, gc=False):
    """The JSON of a snapshot, see `rl_insight.schema.sessions.Snapshot`."""

    session_id: str
    task_id: Any = None
    reason: Any = None
    submit_ts: float | None = None
    enqueue_ts: float | None = None
    wait_return_ts: float | None = None
    finalized_ts: float | None = None
    rollout_stats: Any = None
    counters: Any = None
    step: int | None = None
    model_version: Any = None
    reward: Any = None
    tokens: Any = None


_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Line)
_encode = msgspec.json.Encoder().encode
_FIXED = (SESSION_SEGMENT, PHASE_SEGMENT, _LANE, "ok", "error", "cancelled", "open", "session", *STATUSES)
_POSITION = {text: place + 1 for place, text in enumerate(_FIXED)}
_SPAN_STATUS = {"failed": _POSITION["error"], "cancelled": _POSITION["cancelled"], PENDING: _POSITION["open"]}
_OK, _OPEN, _SESSION = _POSITION["ok"], _POSITION["open"], _POSITION["session"]
_OUTCOMES = {name: _POSITION[name] for name in ("ok", "error", "cancelled")}


class ArealSessionReader(Reader):
    """Reads session records of AReaL, and of anybody who writes them the same way."""

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._processes: dict[tuple[int | None, str | None], Process] = {}
        self._trace = number_of(context.identity, "sessions")
        self._sessions = 0

    def convert(self, data: bytes) -> Iterator[Batch]:
        """Yield a batch for each rank that the lines tell about; it is one, as a rule."""
        by_owner: dict[tuple[int | None, str | None], list[_Line]] = {}
        for line in decoded_lines(data, _decoder, self.context.counts):
            by_owner.setdefault((line.rank, line.role), []).append(line)
        for owner, lines in by_owner.items():
            process = self._process(*owner)
            yield self.context.seal(self._batch(process, lines))

    def _process(self, rank: int | None, role: str | None) -> Process:
        found = self._processes.get((rank, role))
        if found is None:
            part = "" if not self._processes else f"{role or ''}{'' if rank is None else rank}"
            rank = rank if rank is not None and abs(rank) < _STEP_LIMIT else None
            found = self.context.process(part, rank=rank, role=role or "rollout")
            self._processes[rank, role] = found
        return found

    def _batch(self, process: Process, lines: list[_Line]) -> Batch:
        columns = _Columns(process.process_id, self.context.origin_ns)
        for line in lines:
            columns.add(line)
        first = self._sessions
        self._sessions += len(columns.spans)
        return Batch(
            version=VERSION,
            process=process,
            sequence=self.context.next_sequence(process.process_id),
            sent_ns=0,
            strings=columns.strings,
            spans=columns.span_table(self._trace, first),
            sessions=columns.session_table(),
        )


class _Columns:
    """The spans and snapshots of some sessions, column by column; times are seconds until the end."""

    def __init__(self, process_id: str, origin_ns: int) -> None:
        self._process_id = process_id
        self._origin_s = origin_ns / 1e9
        self.strings: list[str] = list(_FIXED)
        self._positions = dict(_POSITION)
        # Of each span: whose child it is (-1: nobody's), name, session, status, times, step, attributes.
        self.spans: list[tuple[int, int, int, int, float, float, int, int]] = []
        self._sessions: list[tuple[int, int, int, float, int]] = []

    def _text(self, value: str) -> int:
        position = self._positions.get(value)
        if position is None:
            self.strings.append(value)
            position = self._positions[value] = len(self.strings)
        return position

    def _unique(self, value: str) -> int:
        """Add a text that is not worth looking up: ids and records stand once."""
        self.strings.append(value)
        return len(self.strings)

    def add(self, line: _Line) -> None:
        """Add one session."""
        own_id = line.session_id
        # A number is unique for a rank only; a text was made to be unique everywhere.
        session_id = own_id if isinstance(own_id, str) else f"{self._process_id}/{own_id}"
        session = self._unique(session_id)
        step = NO_STEP if line.step is None or abs(line.step) >= _STEP_LIMIT else line.step
        if self._origin_s:
            self._shift(line)
        begin, end = line.submit_ts, line.finalized_ts or line.wait_return_ts
        spans, positions = self.spans, self._positions
        parent = len(spans)
        spans.append((-1, _SESSION, session, _OK, 0.0, 0.0, step, 0))
        for name, intervals in (line.phases or {}).items():
            name_position = positions.get(name) or self._text(name)
            for phase in intervals or ():
                start, stop = phase.start_ts, phase.end_ts
                if start is None:
                    continue
                begin = start if begin is None or start < begin else begin
                raw = phase.payload
                payload = self._unique(bytes(raw).decode()) if raw is not _NOTHING and bytes(raw) != _NULL else 0
                if stop is None:
                    status, stop = _OPEN, -1.0
                else:
                    status = _OUTCOMES.get(phase.outcome or "ok", _OK)
                    end = stop if end is None or stop > end else end
                spans.append((parent, name_position, session, status, start, stop, step, payload))
        is_open = line.status == PENDING or end is None
        spans[parent] = (
            -1,
            _SESSION,
            session,
            _SPAN_STATUS.get(line.status, _OK),
            begin or 0.0,
            -1.0 if is_open or end is None else end,
            step,
            0,
        )
        task = 0 if line.task_id is None else self._text(str(line.task_id))
        record = self._unique(_encode(_snapshot(session_id, line)).decode())
        self._sessions.append((session, task, self._text(line.status), end or begin or 0.0, record))

    def _shift(self, line: _Line) -> None:
        shift = self._origin_s
        for mark in ("submit_ts", "enqueue_ts", "wait_return_ts", "finalized_ts"):
            moment = getattr(line, mark)
            if moment is not None and moment < _WALL_CLOCK_S:
                setattr(line, mark, moment + shift)
        for intervals in (line.phases or {}).values():
            for phase in intervals or ():
                if phase.start_ts is not None and phase.start_ts < _WALL_CLOCK_S:
                    phase.start_ts += shift
                if phase.end_ts is not None and phase.end_ts < _WALL_CLOCK_S:
                    phase.end_ts += shift

    def span_table(self, trace: int, first: int) -> Spans:
        """Return the spans; their ids count on from the spans of this file before them."""
        if not self.spans:
            return Spans()
        parents, names, sessions, statuses, starts, ends, steps, attributes = zip(*self.spans, strict=True)
        parent = np.array(parents, np.int64)
        base = np.uint64((trace + first) % 2**63 + 1)
        ids = base + np.arange(len(parents), dtype=np.uint64)
        is_session = parent < 0
        own = np.where(is_session, np.arange(len(parents)), parent).astype(np.uint64)
        start_ns, end = _nanoseconds(starts), np.array(ends)
        duration = np.where(end < 0, -1, np.maximum(_nanoseconds(ends) - start_ns, 0))
        segments = np.where(is_session, _POSITION[SESSION_SEGMENT], _POSITION[PHASE_SEGMENT])
        zeros = np.zeros(len(parents), "<u4").tobytes()
        return Spans(
            span_id=ids.astype("<u8").tobytes(),
            trace_high=np.full(len(parents), trace, "<u8").tobytes(),
            trace_low=(base + own).astype("<u8").tobytes(),
            parent_id=np.where(is_session, 0, base + own).astype("<u8").tobytes(),
            name=_positions(names),
            start_ns=start_ns.astype("<i8").tobytes(),
            duration_ns=duration.astype("<i8").tobytes(),
            segment=segments.astype("<u4").tobytes(),
            lane=np.full(len(parents), _POSITION[_LANE], "<u4").tobytes(),
            status=_positions(statuses),
            error=zeros,
            step=np.array(steps, "<i8").tobytes(),
            session_id=_positions(sessions),
            attributes=_positions(attributes),
        )

    def session_table(self) -> Sessions:
        """Return the snapshots."""
        if not self._sessions:
            return Sessions()
        sessions, tasks, statuses, times, records = zip(*self._sessions, strict=True)
        return Sessions(
            session_id=_positions(sessions),
            task_id=_positions(tasks),
            status=_positions(statuses),
            time_ns=_nanoseconds(times).astype("<i8").tobytes(),
            record=_positions(records),
        )


def _snapshot(session_id: str, line: _Line) -> _Snapshot:
    return _Snapshot(
        session_id,
        line.task_id,
        line.reason,
        line.submit_ts,
        line.enqueue_ts,
        line.wait_return_ts,
        line.finalized_ts,
        None if line.rollout_stats is _NOTHING else line.rollout_stats,
        None if line.counters is _NOTHING else line.counters,
        line.step,
        line.model_version,
        line.reward,
        line.tokens,
    )


def _positions(values: tuple[int, ...]) -> bytes:
    return np.array(values, "<u4").tobytes()


def _nanoseconds(seconds: tuple[float, ...]) -> NDArray[np.int64]:
    """Return seconds as nanoseconds, to the microsecond, within what the store keeps."""
    microseconds: NDArray[np.int64] = np.rint(np.clip(np.array(seconds), 0.0, 4e9) * 1e6).astype(np.int64)
    return microseconds * 1000
