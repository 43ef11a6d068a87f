"""AReaL session records as JSON Lines: one line per session, with its phases.

A session becomes a row and a span, and each of its phases a child span. Lines are converted to columns together, with
comprehensions and NumPy: processing them one by one would cost more than decoding the JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, get_type_hints

import msgspec
import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from rl_insight.exchange.importing.readers.base import WALL_CLOCK_S, FileContext, Reader, decoded_lines, number_of
from rl_insight.schema import NO_STEP, VERSION, Batch, Process
from rl_insight.schema.names import PHASE_SEGMENT, SESSION_SEGMENT
from rl_insight.schema.tables import STEP_LIMIT, Spans
from rl_insight.sessions.model import MARKS, OBJECTS, PENDING, PHASE_COLUMNS, REPORTED, Snapshot, clean
from rl_insight.store.frame import Column, Frame, ListColumn, NumberColumn, Texts, column_of, frame_of, repeated
from rl_insight.store.session_batch import SessionBatch
from rl_insight.store.session_rows import kind_of

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_LANE = "sessions"
_NOTHING = msgspec.Raw()
_ABSENT = (b"", b"null")
_NO_TIME = float("nan")


class _PhaseInterval(msgspec.Struct, gc=False):
    start_ts: float | None = _NO_TIME
    end_ts: float | None = _NO_TIME
    outcome: str | None = None
    payload: msgspec.Raw = _NOTHING


_PhasesByName = dict[str, list[_PhaseInterval] | None]


_KINDS: dict[str, tuple[Any, Any]] = {
    name: (msgspec.Raw, _NOTHING) if name in OBJECTS else (float | None, _NO_TIME) if name in MARKS else (kind, None)
    for name, kind in get_type_hints(Snapshot).items()
    if name in REPORTED
}
# The fields read from a line. Durations are left out: they are derived from the rest.
_SessionLine: Any = msgspec.defstruct(
    "_SessionLine",
    [
        ("session_id", int | str),
        ("status", str, PENDING),
        *((name, kind, default) for name, (kind, default) in _KINDS.items()),
        ("phases", _PhasesByName | None, None),
    ],
    gc=False,
)


_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_SessionLine)
_FIXED = (SESSION_SEGMENT, PHASE_SEGMENT, _LANE, "ok", "error", "cancelled", "open", "session")
_FIRST_ID = len(_FIXED) + 1
"""The position of the first session id."""
_POSITION = {text: place + 1 for place, text in enumerate(_FIXED)}
_SPAN_STATUS = {"failed": _POSITION["error"], "cancelled": _POSITION["cancelled"], PENDING: _POSITION["open"]}
_OK, _OPEN, _SESSION = _POSITION["ok"], _POSITION["open"], _POSITION["session"]
_OUTCOMES = {name: _POSITION[name] for name in ("ok", "error", "cancelled")}


class ArealSessionReader(Reader):
    """Reads session records in AReaL's format."""

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._processes: dict[tuple[int | None, str | None], Process] = {}
        self._trace = number_of(context.identity, "sessions")
        self._spans = 0

    def convert(self, data: bytes) -> Iterator[Batch]:
        """Yield a batch per rank; usually there is one."""
        lines = decoded_lines(data, _decoder, self.context.counts)
        self.context.counts.records += len(lines)
        for (rank, role), own in _by_owner(lines).items():
            yield self.context.seal(self._batch(self._process(rank, role), own))

    def _process(self, rank: int | None, role: str | None) -> Process:
        found = self._processes.get((rank, role))
        if found is None:
            part = "" if not self._processes else f"{role or ''}{'' if rank is None else rank}"
            known_rank = rank if rank is not None and abs(rank) < STEP_LIMIT else None
            found = self.context.process(part, rank=known_rank, role=role or "rollout")
            self._processes[rank, role] = found
        return found

    def _batch(self, process: Process, lines: list[Any]) -> SessionBatch:
        sessions = _SessionColumns(process, lines, self.context.origin_ns / 1e9, self._trace, self._spans)
        self._spans += len(sessions.span_id)
        texts = Texts(sessions.strings)
        return SessionBatch(
            version=VERSION,
            process=process,
            sequence=self.context.next_sequence(process.process_id),
            sent_ns=0,
            strings=sessions.strings,
            spans=sessions.spans(),
            texts=texts,
            rows=sessions.rows(process, texts),
        )


def _by_owner(lines: list[Any]) -> dict[tuple[int | None, str | None], list[Any]]:
    if len({line.rank for line in lines}) == 1 and len({line.role for line in lines}) == 1:
        return {(lines[0].rank, lines[0].role): lines}
    owners: dict[tuple[int | None, str | None], list[Any]] = {}
    for line in lines:
        owners.setdefault((line.rank, line.role), []).append(line)
    return owners


class _SessionColumns:
    """Some sessions and their phases, as columns; times are seconds, NaN if there is none.

    The ids of spans are made from `trace` and from `first`, the number of spans before them in the file.
    """

    def __init__(self, process: Process, lines: list[Any], origin_s: float, trace: int, first: int) -> None:
        self._count = count = len(lines)
        # Columns from tuples: half the time of a comprehension for each field.
        columns = zip(*map(astuple, lines), strict=True)
        self._given: dict[str, tuple[Any, ...]] = dict(zip(_SessionLine.__struct_fields__, columns, strict=True))
        # A numeric id is unique only within a rank; a string id is unique everywhere.
        prefix = f"{process.process_id}/"
        ids = [own if own.__class__ is str else f"{prefix}{own}" for own in self._given["session_id"]]
        self._marks = {name: _times(self._given[name], origin_s) for name in MARKS}
        self._statuses = [status or PENDING for status in self._given["status"]]
        self.strings = [*_FIXED, *ids]
        self._phases = phases = _PhaseColumns([own or {} for own in self._given["phases"]], self.strings, origin_s)
        codes = {status: _SPAN_STATUS.get(status, _OK) for status in set(self._statuses)}
        self._span_status = np.fromiter(map(codes.__getitem__, self._statuses), np.int64, count)
        returned, finalized = self._marks["wait_return_ts"], self._marks["finalized_ts"]
        ends = np.where(np.isnan(finalized), returned, finalized)
        begin = np.fmin(self._marks["submit_ts"], phases.by_session(np.fmin, phases.start))
        end = np.fmax(ends, phases.by_session(np.fmax, phases.end))
        self._time_ns = _nanoseconds(np.where(np.isnan(end), begin, end))
        # The spans: first those of the sessions, then those of their phases.
        end[self._span_status == _OPEN] = np.nan
        ends = np.concatenate((end, phases.end))
        self._start_ns = _nanoseconds(np.concatenate((begin, phases.start)))
        self._duration_ns = np.where(np.isnan(ends), -1, np.maximum(_nanoseconds(ends) - self._start_ns, 0))
        self._owner: Integers = np.concatenate((np.arange(count), phases.owner))
        self._trace = trace
        self.span_id = np.uint64((trace + first) % 2**63 + 1) + np.arange(len(self._owner), dtype="<u8")

    def spans(self) -> Spans:
        """Return the spans as the table of a batch."""
        count, phases = len(self._owner), self._phases
        own = self.span_id[self._owner]
        parents = own.copy()
        parents[: self._count] = 0
        spans: Spans = Spans.from_columns(
            count,
            span_id=self.span_id.tobytes(),
            trace_high=np.full(count, self._trace, "<u8").tobytes(),
            trace_low=own.tobytes(),
            parent_id=parents.tobytes(),
            name=self._texts(_SESSION, phases.name),
            start_ns=self._start_ns.astype("<i8").tobytes(),
            duration_ns=self._duration_ns.astype("<i8").tobytes(),
            segment=self._texts(_POSITION[SESSION_SEGMENT], _POSITION[PHASE_SEGMENT]),
            lane=np.full(count, _POSITION[_LANE], "<u4").tobytes(),
            status=self._texts(self._span_status, phases.status),
            step=self._steps()[self._owner].astype("<i8").tobytes(),
            session_id=(self._owner + _FIRST_ID).astype("<u4").tobytes(),
            attributes=self._texts(0, phases.payload),
        )
        return spans

    def _texts(self, of_sessions: Any, of_phases: Any) -> bytes:
        """Return a column of string positions from its parts for sessions and phases."""
        column = np.empty(len(self._owner), "<u4")
        column[: self._count] = of_sessions
        column[self._count :] = of_phases
        return column.tobytes()

    def _steps(self) -> Integers:
        steps = self._given["step"]
        if steps.count(None) == len(steps):
            return np.full(len(steps), NO_STEP)
        return np.array([NO_STEP if step is None or abs(step) >= STEP_LIMIT else step for step in steps], np.int64)

    def rows(self, process: Process, texts: Texts) -> Frame:
        """Return the sessions in the columns of the store; `texts` are those of `strings`."""
        count = self._count
        owner = {"process_id": process.process_id, "rank": process.rank, "role": process.role or None}
        columns: dict[str, Column] = {
            "session_id": texts.between(_FIRST_ID, _FIRST_ID + count),
            **{name: repeated(value, kind_of(name), count) for name, value in owner.items()},
            "status": column_of(self._statuses, str),
            **{name: _values(name, self._given[name]) for name in REPORTED if name not in {*owner, *MARKS}},
            **{name: NumberColumn(times, np.isnan(times)) for name, times in self._marks.items()},
            "phases": self._phase_lists(texts),
            "snapshot_ns": NumberColumn(self._time_ns),
        }
        return Frame(columns)

    def _phase_lists(self, texts: Texts) -> ListColumn:
        phases, start_ns = self._phases, self._start_ns[self._count :]
        duration_ns = self._duration_ns[self._count :]
        columns = (
            start_ns // 1000 / 1e6,
            NumberColumn((start_ns + duration_ns) // 1000 / 1e6, duration_ns < 0),
            self.span_id[self._count :],
            texts.required(phases.name),
            texts.required(phases.status),
            texts.at(phases.payload),
        )
        return ListColumn.of(phases.counts, frame_of(dict(zip(PHASE_COLUMNS, columns, strict=True))))


class _PhaseColumns:
    """The phases of some sessions, as columns; their names and payloads are added to `strings`."""

    def __init__(self, sessions: list[_PhasesByName], strings: list[str], origin_s: float) -> None:
        # Most sessions have the same phases, so their names are looked up once.
        shapes = list(map(tuple, sessions))
        positions: dict[str, int] = {}
        places: dict[tuple[str, ...], bytes] = {}
        for shape in dict.fromkeys(shapes):
            for name in shape:
                if name not in positions:
                    strings.append(name)
                    positions[name] = len(strings)
            places[shape] = np.array([positions[name] for name in shape], np.int64).tobytes()
        names = np.frombuffer(b"".join(map(places.__getitem__, shapes)), np.int64)
        owner = np.repeat(np.arange(len(sessions)), np.fromiter(map(len, shapes), np.int64, len(shapes)))
        lists: list[Any] = list(chain.from_iterable(map(dict.values, sessions)))
        try:
            phases: list[_PhaseInterval] = list(chain.from_iterable(lists))
        except TypeError:  # some are null; checking first would cost more
            lists = [intervals or () for intervals in lists]
            phases = list(chain.from_iterable(lists))
        if len(phases) != len(lists) or not all(lists):  # else each name has one interval
            lengths = np.fromiter(map(len, lists), np.int64, len(lists))
            owner, names = np.repeat(owner, lengths), np.repeat(names, lengths)
        self.start = _times([phase.start_ts for phase in phases], origin_s)
        self.end = _times([phase.end_ts for phase in phases], origin_s)
        self.owner: Integers = owner
        self.name: Integers = names
        self.status = _outcomes([phase.outcome for phase in phases], self.end)
        self.payload = _payloads([phase.payload for phase in phases], strings)
        begun = ~np.isnan(self.start)
        if not begun.all():
            self.start, self.end, self.owner = self.start[begun], self.end[begun], self.owner[begun]
            self.name, self.status, self.payload = self.name[begun], self.status[begun], self.payload[begun]
        self.counts: Integers = np.bincount(self.owner, minlength=len(sessions))

    def by_session(self, combine: np.ufunc, times: Floats) -> Floats:
        """Return the earliest or latest time of each session."""
        found = np.full(len(self.counts), np.nan)
        filled = self.counts > 0
        if len(times):
            found[filled] = combine.reduceat(times, (np.cumsum(self.counts) - self.counts)[filled])
        return found


def _values(name: str, values: Sequence[Any]) -> Column:
    """Return the reported values as a column; most fields are absent everywhere."""
    _, absent = _KINDS[name]
    if values.count(absent) == len(values):
        return repeated(None, kind_of(name), len(values))
    fitting = map(_object, values) if name in OBJECTS else (clean(name, value) for value in values)
    return column_of(list(fitting), kind_of(name))


def _object(value: msgspec.Raw) -> str | None:
    """Return a JSON object as a string; None for an empty one, and for any other value."""
    text = bytes(value)
    return text.decode() if text.startswith(b"{") and text != b"{}" else None


def _times(seconds: Sequence[float | None], origin_s: float) -> Floats:
    times: Floats = np.array(seconds, np.float64)
    if origin_s:
        times[times < WALL_CLOCK_S] += origin_s
    return times


def _outcomes(outcomes: Sequence[str | None], ends: Floats) -> Integers:
    if outcomes.count(None) == len(outcomes):
        reported = np.full(len(outcomes), _OK)
    else:
        reported = np.array([_OUTCOMES.get(outcome or "ok", _OK) for outcome in outcomes], np.int64)
    return np.where(np.isnan(ends), _OPEN, reported)


def _payloads(payloads: Sequence[msgspec.Raw], strings: list[str]) -> Integers:
    """Add payloads to the strings and return their positions; 0 for none."""
    found: Integers = np.zeros(len(payloads), np.int64)
    if payloads.count(_NOTHING) == len(payloads):
        return found
    for row, payload in enumerate(map(bytes, payloads)):
        if payload not in _ABSENT:
            strings.append(payload.decode())
            found[row] = len(strings)
    return found


def _nanoseconds(seconds: Floats) -> Integers:
    """Return seconds as nanoseconds, to the microsecond, within the range of the store; NaN becomes 0."""
    known = np.clip(np.nan_to_num(seconds), 0.0, 4e9)
    microseconds: Integers = np.rint(known * 1e6).astype(np.int64)
    return microseconds * 1000
