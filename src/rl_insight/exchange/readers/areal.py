"""AReaL session records as JSON Lines: one line a session, with its phases.

A session becomes a row and a span, each of its phases a span inside that. Lines are turned into columns at once, with
comprehensions and NumPy: steps for each line would cost more than reading the JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from rl_insight.exchange.readers.base import FileContext, Reader, decoded_lines, number_of
from rl_insight.schema import NO_STEP, VERSION, Batch, Process
from rl_insight.schema.batch import Spans
from rl_insight.schema.sessions import PENDING, PHASE_SEGMENT, SESSION_SEGMENT
from rl_insight.store.whole_sessions import Floats, Integers, SessionBatch, WholeSessions

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


_PhasesByName = dict[str, list[_Phase] | None]


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
    phases: _PhasesByName | None = None
    counters: msgspec.Raw = _NOTHING
    step: int | None = None
    model_version: Any = None
    reward: Any = None
    tokens: Any = None


_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Line)
_FIXED = (SESSION_SEGMENT, PHASE_SEGMENT, _LANE, "ok", "error", "cancelled", "open", "session")
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
        self._spans = 0

    def convert(self, data: bytes) -> Iterator[Batch]:
        """Yield a batch for each rank that the lines tell about; it is one, as a rule."""
        lines = decoded_lines(data, _decoder, self.context.counts)
        for (rank, role), own in _by_owner(lines).items():
            yield self.context.seal(self._batch(self._process(rank, role), own))

    def _process(self, rank: int | None, role: str | None) -> Process:
        found = self._processes.get((rank, role))
        if found is None:
            part = "" if not self._processes else f"{role or ''}{'' if rank is None else rank}"
            known_rank = rank if rank is not None and abs(rank) < _STEP_LIMIT else None
            found = self.context.process(part, rank=known_rank, role=role or "rollout")
            self._processes[rank, role] = found
        return found

    def _batch(self, process: Process, lines: list[_Line]) -> SessionBatch:
        sessions = _SessionColumns(process.process_id, lines, self.context.origin_ns / 1e9)
        spans = sessions.spans(self._trace, self._spans)
        self._spans += len(spans)
        return SessionBatch(
            version=VERSION,
            process=process,
            sequence=self.context.next_sequence(process.process_id),
            sent_ns=0,
            strings=sessions.strings,
            spans=spans,
            whole=sessions.whole(),
        )


def _by_owner(lines: list[_Line]) -> dict[tuple[int | None, str | None], list[_Line]]:
    if len({line.rank for line in lines}) == 1 and len({line.role for line in lines}) == 1:
        return {(lines[0].rank, lines[0].role): lines}
    owners: dict[tuple[int | None, str | None], list[_Line]] = {}
    for line in lines:
        owners.setdefault((line.rank, line.role), []).append(line)
    return owners


class _SessionColumns:
    """Some sessions and their phases, column by column; times are seconds, NaN where there is none."""

    def __init__(self, process_id: str, lines: list[_Line], origin_s: float) -> None:
        self._count = len(lines)
        # Columns from tuples: half the time of a comprehension for each field.
        columns = zip(*map(astuple, lines), strict=True)
        self._given: dict[str, tuple[Any, ...]] = dict(zip(_Line.__struct_fields__, columns, strict=True))
        # A number is unique for a rank only; a text was made to be unique everywhere.
        self._ids = [own if own.__class__ is str else f"{process_id}/{own}" for own in self._given["session_id"]]
        self._submit = _moments(self._given["submit_ts"], origin_s)
        self._enqueue = _moments(self._given["enqueue_ts"], origin_s)
        self._wait_return = _moments(self._given["wait_return_ts"], origin_s)
        self._finalized = _moments(self._given["finalized_ts"], origin_s)
        self._statuses = [status or PENDING for status in self._given["status"]]
        self.strings = [*_FIXED, *self._ids]
        self._phases = _PhaseColumns([phases or {} for phases in self._given["phases"]], self.strings, origin_s)
        ends = np.where(np.isnan(self._finalized), self._wait_return, self._finalized)
        self._begin = np.fmin(self._submit, self._phases.by_session(np.fmin, self._phases.start))
        self._end = np.fmax(ends, self._phases.by_session(np.fmax, self._phases.end))
        # Each session's span stands before those of its phases.
        self._span_rows = np.arange(self._count) + np.cumsum(self._phases.counts) - self._phases.counts
        self._phase_rows = np.arange(len(self._phases)) + self._phases.owner + 1

    def _column(self, of_sessions: Any, of_phases: Any, kind: str) -> NDArray[Any]:
        """Return a column of all spans from the sessions' and the phases' part of it."""
        column = np.empty(self._count + len(self._phases), kind)
        column[self._span_rows] = of_sessions
        column[self._phase_rows] = of_phases
        return column

    def spans(self, trace: int, first: int) -> Spans:
        """Return the spans; their ids count on from the spans of this file before them."""
        phases = self._phases
        count = self._count + len(phases)
        base = np.uint64((trace + first) % 2**63 + 1)
        own = (base + self._span_rows.astype(np.uint64))[self._owner()]
        is_pending = np.array([status == PENDING for status in self._statuses], bool)
        start = _nanoseconds(self._column(self._begin, phases.start, "f8"))
        end = self._column(np.where(is_pending, np.nan, self._end), phases.end, "f8")
        duration = np.where(np.isnan(end), -1, np.maximum(_nanoseconds(end) - start, 0))
        steps = self._steps()
        ids = np.arange(len(_FIXED) + 1, len(_FIXED) + 1 + self._count)
        statuses = [_SPAN_STATUS.get(status, _OK) for status in self._statuses]
        return Spans(
            span_id=(base + np.arange(count, dtype=np.uint64)).astype("<u8").tobytes(),
            trace_high=np.full(count, trace, "<u8").tobytes(),
            trace_low=own.astype("<u8").tobytes(),
            parent_id=self._column(0, own[self._phase_rows], "<u8").tobytes(),
            name=self._column(_SESSION, phases.name, "<u4").tobytes(),
            start_ns=start.astype("<i8").tobytes(),
            duration_ns=duration.astype("<i8").tobytes(),
            segment=self._column(_POSITION[SESSION_SEGMENT], _POSITION[PHASE_SEGMENT], "<u4").tobytes(),
            lane=np.full(count, _POSITION[_LANE], "<u4").tobytes(),
            status=self._column(statuses, phases.status, "<u4").tobytes(),
            error=bytes(4 * count),
            step=steps[self._owner()].astype("<i8").tobytes(),
            session_id=ids[self._owner()].astype("<u4").tobytes(),
            attributes=self._column(0, phases.payload, "<u4").tobytes(),
        )

    def _owner(self) -> Integers:
        owner: Integers = np.repeat(np.arange(self._count), self._phases.counts + 1)
        return owner

    def _steps(self) -> Integers:
        steps = self._given["step"]
        if steps.count(None) == len(steps):
            return np.full(len(steps), NO_STEP)
        return np.array([NO_STEP if step is None or abs(step) >= _STEP_LIMIT else step for step in steps], np.int64)

    def whole(self) -> WholeSessions:
        """Return the sessions for the store."""
        given = self._given
        latest = np.where(np.isnan(self._end), self._begin, self._end)
        return WholeSessions(
            session_id=self._ids,
            status=self._statuses,
            time_ns=_nanoseconds(latest),
            submit_ts=self._submit,
            enqueue_ts=self._enqueue,
            wait_return_ts=self._wait_return,
            finalized_ts=self._finalized,
            task_id=given["task_id"],
            reason=given["reason"],
            rollout_stats=_texts(given["rollout_stats"]),
            counters=_texts(given["counters"]),
            step=given["step"],
            model_version=given["model_version"],
            reward=given["reward"],
            tokens=given["tokens"],
            owner=self._owner(),
        )


class _PhaseColumns:
    """The phases of some sessions, column by column.

    Args:
        sessions: the phases of each.
        strings: where names and payloads are added.
        origin_s: what to add to times that do not count from 1970.
    """

    def __init__(self, sessions: list[_PhasesByName], strings: list[str], origin_s: float) -> None:
        positions = dict.fromkeys(chain.from_iterable(sessions), 0)
        for name in positions:
            strings.append(name)
            positions[name] = len(strings)
        lists: list[Any] = list(chain.from_iterable(map(dict.values, sessions)))
        if None in lists:
            lists = [intervals or () for intervals in lists]
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        phases: list[_Phase] = list(chain.from_iterable(lists))
        names = np.fromiter(map(positions.__getitem__, chain.from_iterable(sessions)), np.int64, len(lists))
        owner = np.repeat(np.arange(len(sessions)), list(map(len, sessions)))
        columns = zip(*map(astuple, phases), strict=True) if phases else ((),) * 4
        start_ts, end_ts, outcomes, payloads = columns
        self.start = _moments(start_ts, origin_s)
        self.end = _moments(end_ts, origin_s)
        self.owner: Integers = np.repeat(owner, lengths)
        self.name: Integers = np.repeat(names, lengths)
        self.status = _outcomes(outcomes, self.end)
        self.payload = _payloads(payloads, strings)
        begun = ~np.isnan(self.start)
        if not begun.all():
            self.start, self.end, self.owner = self.start[begun], self.end[begun], self.owner[begun]
            self.name, self.status, self.payload = self.name[begun], self.status[begun], self.payload[begun]
        self.counts: Integers = np.bincount(self.owner, minlength=len(sessions))

    def __len__(self) -> int:
        return len(self.owner)

    def by_session(self, combine: np.ufunc, moments: Floats) -> Floats:
        """Return the least or greatest moment of each session."""
        found = np.full(len(self.counts), np.nan)
        filled = self.counts > 0
        if len(moments):
            found[filled] = combine.reduceat(moments, (np.cumsum(self.counts) - self.counts)[filled])
        return found


def _moments(seconds: Sequence[float | None], origin_s: float) -> Floats:
    moments: Floats = np.array(seconds, np.float64)
    if origin_s:
        moments[moments < _WALL_CLOCK_S] += origin_s
    return moments


def _outcomes(outcomes: Sequence[str | None], ends: Floats) -> Integers:
    if outcomes.count(None) == len(outcomes):
        told = np.full(len(outcomes), _OK)
    else:
        told = np.array([_OUTCOMES.get(outcome or "ok", _OK) for outcome in outcomes], np.int64)
    return np.where(np.isnan(ends), _OPEN, told)


def _payloads(payloads: Sequence[msgspec.Raw], strings: list[str]) -> Integers:
    """Add payloads to the strings and return where they stand; 0 for none."""
    found: Integers = np.zeros(len(payloads), np.int64)
    if payloads.count(_NOTHING) == len(payloads):
        return found
    for row, payload in enumerate(_texts(payloads)):
        if payload is not None:
            strings.append(payload.decode())
            found[row] = len(strings)
    return found


def _texts(values: Sequence[msgspec.Raw]) -> list[bytes | None]:
    """Return JSON that is kept as it is; None for nothing."""
    if values.count(_NOTHING) == len(values):
        return [None] * len(values)
    texts: list[bytes | None] = list(map(bytes, values))
    if b"" in texts or _NULL in texts:
        return [None if text in {b"", _NULL} else text for text in texts]
    return texts


def _nanoseconds(seconds: Floats) -> Integers:
    """Return seconds as nanoseconds, to the microsecond, within what the store keeps; none is 0."""
    known = np.clip(np.nan_to_num(seconds), 0.0, 4e9)
    microseconds: Integers = np.rint(known * 1e6).astype(np.int64)
    return microseconds * 1000
