"""Sessions that arrive with everything that is known about them, as a file of finished sessions holds them.

What live processes tell comes in parts and is merged, one session at a time (see `rl_insight.store.sessions`). A whole
session needs no merging: its row follows from its marks and its phases, for thousands of sessions at once, in columns.
The rows are the same either way.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rl_insight.schema import Batch, Process
from rl_insight.schema.tables import Sessions
from rl_insight.sessions.model import (
    COLUMNS,
    DEFAULTS,
    EXECUTION,
    FIELDS,
    KNOWN_PHASES,
    MARKS,
    OBJECTS,
    REPORTED,
    clean,
)
from rl_insight.sessions.records import union_length
from rl_insight.store.columns import Texts
from rl_insight.store.session_rows import ARROW, PHASES_TYPE, json_of

_LIFECYCLE = ("queue_wait", "runner_wait", "post_wait", "total")
_NO_TEXT = pa.scalar(None, pa.string())
_encode = msgspec.json.Encoder().encode

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


VALUES: Final = tuple(name for name in REPORTED if name not in {"rank", "role", *MARKS})
"""What the owner of a session reports beside its marks."""


@dataclass(slots=True)
class WholeSessions:
    """Sessions column by column."""

    session_id: pa.Array
    status: Sequence[str]
    time_ns: Integers
    marks: dict[str, Floats]
    """All of `MARKS`; one that is absent is NaN."""
    reported: dict[str, Sequence[Any]]
    """All of `VALUES`; those that are objects are `msgspec.Raw`, and what is not an object does not count."""


@dataclass(slots=True)
class WholePhases:
    """The phases of some sessions column by column, session by session; texts are positions."""

    owner: Integers
    """The place of its session."""
    start_ns: Integers
    duration_ns: Integers
    """-1 where it has not ended."""
    span_id: NDArray[np.uint64]
    name: Integers
    outcome: Integers
    payload: Integers

    def in_order(self) -> WholePhases:
        """Return those of each session in the order in which they began."""
        owner, start_ns = self.owner, self.start_ns
        if not np.any((owner[1:] == owner[:-1]) & (start_ns[1:] < start_ns[:-1])):
            return self
        order = np.lexsort((start_ns, owner))
        return WholePhases(*(getattr(self, field.name)[order] for field in fields(self)))


class SessionBatch(Batch, kw_only=True):
    """A batch whose sessions are whole: all their spans are in it, and they are rows already instead of snapshots."""

    texts: Texts
    """Its strings, as Arrow has them."""
    rows: pa.Table
    """The sessions in the columns of the table."""


_TEXTS = tuple(name for name in VALUES if name in OBJECTS)
_SCALARS = tuple(name for name in VALUES if name not in OBJECTS)


def plain(batch: Batch) -> Batch:
    """Return a batch as one that can be sent: each whole session becomes a snapshot."""
    if not isinstance(batch, SessionBatch):
        return batch
    rows = batch.rows.select(["session_id", "status", *_SCALARS, *MARKS, *_TEXTS]).to_pylist()
    strings = list(batch.strings)

    def positions(texts: Iterable[str | None]) -> bytes:
        """Add texts and return where they stand."""
        column = array("I")
        for text in texts:
            if text is not None:
                strings.append(text)
            column.append(0 if text is None else len(strings))
        return column.tobytes()

    sessions = Sessions(
        session_id=positions(row["session_id"] for row in rows),
        task_id=positions(row["task_id"] for row in rows),
        status=positions(row["status"] for row in rows),
        time_ns=batch.rows.column("snapshot_ns").to_numpy().astype("<i8").tobytes(),
        record=positions(map(_snapshot_text, rows)),
    )
    parts = {name: getattr(batch, name) for name in Batch.__struct_fields__}
    return Batch(**parts | {"strings": strings, "sessions": sessions})


def _snapshot_text(row: dict[str, Any]) -> str:
    """Return the JSON of a snapshot, see `rl_insight.sessions.model.Snapshot`."""
    told = {name: row[name] for name in ("session_id", *_SCALARS, *MARKS) if row[name] is not None}
    told |= {name: msgspec.Raw(row[name].encode()) for name in _TEXTS if row[name] is not None}
    if not isfinite(told.get("reward", 0.0)):
        told["reward"] = str(told["reward"])  # JSON has no number for it
    return _encode(told).decode()


def whole_session_table(process: Process, whole: WholeSessions, phases: WholePhases, texts: Texts) -> pa.Table:
    """Return the sessions of one process in the columns of the table."""
    count = len(whole.session_id)
    named = _Phases(phases.in_order(), texts, count)
    known = {name: named.of(name) for name in KNOWN_PHASES}
    durations = _lifecycle(whole.marks, known[EXECUTION])
    durations |= {f"{name}_s": intervals.seconds() for name, intervals in known.items()}
    columns: dict[str, Any] = {
        "session_id": whole.session_id,
        "process_id": _repeated(process.process_id, pa.string(), count),
        "rank": _repeated(process.rank, pa.int64(), count),
        "role": _repeated(process.role or None, pa.string(), count),
        "status": pa.array(whole.status, pa.string()),
        **{name: _column(name, values) for name, values in _with_defaults(whole.reported).items()},
        "phases": named.lists(),
        "phase_seconds": _other_seconds(named, durations, count),
    }
    for name, values in (whole.marks | durations).items():
        columns[name] = pa.array(values, mask=np.isnan(values))
    table = pa.table({name: columns[name] for name in FIELDS})
    return table.append_column("snapshot_ns", pa.array(whole.time_ns))


def _lifecycle(marks: dict[str, Floats], executions: _Intervals) -> dict[str, Floats]:
    submit, enqueue, returned = marks["submit_ts"], marks["enqueue_ts"], marks["wait_return_ts"]
    return {
        "queue_wait_s": _between(submit, enqueue),
        "runner_wait_s": _between(enqueue, executions.first_start()),
        "post_wait_s": _between(executions.first_end(), returned),
        "total_s": _between(submit, np.fmax(returned, marks["finalized_ts"])),
    }


def _between(start: Floats, end: Floats) -> Floats:
    """Return seconds from one moment to another; NaN where one is absent."""
    return _rounded(np.maximum(end - start, 0.0))


def _rounded(seconds: Floats) -> Floats:
    rounded: Floats = np.round(seconds, 6)
    return rounded


def _other_seconds(phases: _Phases, durations: dict[str, Floats], count: int) -> pa.Array:
    """Return the seconds of the phases that have no column of their own, as JSON."""
    found: dict[int, dict[str, float]] = {}
    for name in phases.names:
        if name in KNOWN_PHASES:
            continue
        of_name = phases.of(name)
        # The name of a part of the life cycle means that part, also where a phase bears it.
        seconds = durations[f"{name}_s"] if name in _LIFECYCLE else of_name.seconds()
        for row in np.unique(of_name.owner).tolist():
            if not np.isnan(seconds[row]):
                found.setdefault(row, {})[name] = float(seconds[row])
    return pa.array([json_of(found.get(row)) for row in range(count)] if found else pa.nulls(count), pa.string())


class _Phases:
    """The phases of some sessions, by their names."""

    def __init__(self, phases: WholePhases, texts: Texts, count: int) -> None:
        self._given = phases
        self._texts = texts
        self._count = count
        self._start_us = _microseconds(phases.start_ns)
        self._end_us = _microseconds(phases.start_ns + phases.duration_ns)
        self._is_open = phases.duration_ns < 0
        positions = np.flatnonzero(np.bincount(phases.name)).tolist()
        self._positions = {texts.text(position) or "": position for position in positions}

    @property
    def names(self) -> list[str]:
        """The names of all phases."""
        return list(self._positions)

    def of(self, name: str) -> _Intervals:
        """Return the phases of one name."""
        where = np.flatnonzero(self._given.name == self._positions.get(name, -1))
        ended = where[~self._is_open[where]]
        owner = self._given.owner
        return _Intervals(
            self._count,
            owner[where],
            self._start_us[where],
            owner[ended],
            self._start_us[ended],
            self._end_us[ended],
        )

    def lists(self) -> pa.Array:
        """Return the phases as the table holds them, a list for each session."""
        given, text = self._given, self._texts.at
        offsets = np.zeros(self._count + 1, np.int32)
        np.cumsum(np.bincount(given.owner, minlength=self._count), out=offsets[1:])
        columns = [
            pa.array(self._start_us / 1e6),
            pa.array(self._end_us / 1e6, mask=self._is_open),
            pa.array(given.span_id),
            text(given.name),
            text(given.outcome),
            text(given.payload),
        ]
        structs = pa.StructArray.from_arrays(columns, names=[field.name for field in PHASES_TYPE.value_type])
        return pa.ListArray.from_arrays(pa.array(offsets), structs)


@dataclass(slots=True)
class _Intervals:
    """The phases of one name: all of them by their start, and those that have ended."""

    count: int
    """How many sessions there are."""
    owner: Integers
    start_us: Integers
    ended_owner: Integers
    ended_start_us: Integers
    end_us: Integers

    def first_start(self) -> Floats:
        """Return when each session's first one began."""
        return self._spread(self.owner, self.start_us, np.minimum)

    def first_end(self) -> Floats:
        """Return when the first one of each session ended."""
        return self._spread(self.ended_owner, self.end_us, np.minimum)

    def seconds(self) -> Floats:
        """Return how long at least one of each session's intervals ran."""
        owner, start, end = self.ended_owner, self.ended_start_us, self.end_us
        found = self._spread(owner, np.maximum(end - start, 0), np.add)
        overlaps = (owner[1:] == owner[:-1]) & (start[1:] < end[:-1])
        for session in np.unique(owner[1:][overlaps]).tolist():
            first, last = np.searchsorted(owner, (session, session + 1))
            intervals = zip(start[first:last].tolist(), end[first:last].tolist(), strict=True)
            found[session] = union_length(intervals) / 1e6
        return found

    def _spread(self, owner: Integers, values: Integers, combine: np.ufunc) -> Floats:
        """Return one number a session, in seconds; NaN where it has none."""
        found = np.full(self.count, np.nan)
        if len(owner):
            first = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
            found[owner[first]] = combine.reduceat(values, first) / 1e6
        return found


def _microseconds(time_ns: Integers) -> Integers:
    whole: Integers = (time_ns + 500) // 1000
    return whole


def _with_defaults(reported: dict[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    found = dict(reported)
    for name, other in DEFAULTS.items():
        pairs = zip(reported[name], reported[other], strict=True)
        found[name] = [default if value is None else value for value, default in pairs]
    return found


def _column(name: str, values: Sequence[Any]) -> pa.Array:
    """Return what users gave, made fit for a column; mostly nothing was given."""
    if name in OBJECTS:
        return _objects(values)
    kind = ARROW[COLUMNS[name]]
    absent = values.count(None)
    if absent == len(values):
        return pa.nulls(absent, kind)
    if kind == pa.string() and set(map(type, values)) == {int}:
        try:
            return pa.array(values, pa.int64()).cast(kind)  # ids as whole numbers, all at once
        except OverflowError:
            pass  # one of them has more than 64 bits
    return pa.array([clean(name, value) for value in values], kind)


def _objects(values: Sequence[msgspec.Raw]) -> pa.Array:
    """Return the texts of JSON objects, which must be UTF-8; what is none, or empty, is null."""
    lengths = np.fromiter(map(len, values), np.int32, len(values))
    if not lengths.any():
        return pa.nulls(len(values), pa.string())
    data = b"".join(values)
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    first = np.frombuffer(data, np.uint8)[np.minimum(offsets[:-1], len(data) - 1)]
    is_object = (first == ord("{")) & (lengths > len("{}"))
    found = pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(data))
    return found if is_object.all() else pc.if_else(pa.array(is_object), found, _NO_TEXT)


def _repeated(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)
