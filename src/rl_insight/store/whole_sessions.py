"""Sessions that arrive with everything that is known about them, as a file of finished sessions holds them.

What live processes tell comes in parts and is merged, one session at a time (see `rl_insight.store.sessions`). A whole
session needs no merging: its row follows from its marks and its phases, for thousands of sessions at once, in columns.
The rows are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rl_insight.schema import Batch
from rl_insight.schema.batch import Sessions
from rl_insight.schema.sessions import EXECUTION, KNOWN_PHASES, PHASE_SEGMENT, union_length
from rl_insight.store.columns import Texts, numbers
from rl_insight.store.session_rows import NAMES, PHASES_TYPE, number_of, text_of, whole_of

_STEP_LIMIT = 2**62
_LIFECYCLE = ("queue_wait", "runner_wait", "post_wait", "total")
_encode = msgspec.json.Encoder().encode

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(slots=True)
class WholeSessions:
    """Sessions column by column; a mark that is absent is NaN."""

    session_id: list[str]
    status: Sequence[str]
    time_ns: Integers
    submit_ts: Floats
    enqueue_ts: Floats
    wait_return_ts: Floats
    finalized_ts: Floats
    task_id: Sequence[Any]
    reason: Sequence[Any]
    rollout_stats: Sequence[bytes | None]
    """The text of JSON."""
    counters: Sequence[bytes | None]
    step: Sequence[int | None]
    model_version: Sequence[Any]
    reward: Sequence[Any]
    tokens: Sequence[Any]
    owner: Integers
    """Of each span of the batch, the row of its session; in order."""

    def __len__(self) -> int:
        return len(self.session_id)


class SessionBatch(Batch, kw_only=True):
    """A batch whose sessions are whole: all their spans are in it, and they stand in columns instead of snapshots."""

    whole: WholeSessions

    def plain(self) -> Batch:
        """Return the same as a batch that can be sent: each session is a snapshot."""
        whole, strings = self.whole, list(self.strings)

        def positions(texts: Sequence[str | None]) -> bytes:
            """Add texts and return where they stand."""
            column = np.arange(len(strings) + 1, len(strings) + len(texts) + 1)
            strings.extend(text or "" for text in texts)
            return np.where([text is None for text in texts], 0, column).astype("<u4").tobytes()

        sessions = Sessions(
            session_id=positions(whole.session_id),
            task_id=positions([text_of(task) for task in whole.task_id]),
            status=positions(whole.status),
            time_ns=whole.time_ns.astype("<i8").tobytes(),
            record=positions([_snapshot_text(whole, row) for row in range(len(whole))]),
        )
        fields = {name: getattr(self, name) for name in Batch.__struct_fields__}
        return Batch(**fields | {"strings": strings, "sessions": sessions})


_MARKS = ("submit_ts", "enqueue_ts", "wait_return_ts", "finalized_ts")
_VALUES = ("task_id", "reason", "step", "model_version", "reward", "tokens")
_TEXTS = ("rollout_stats", "counters")


def _snapshot_text(whole: WholeSessions, row: int) -> str:
    """Return the JSON of a snapshot, see `rl_insight.schema.sessions.Snapshot`."""
    fields: dict[str, Any] = {"session_id": whole.session_id[row]}
    fields |= {name: value for name in _VALUES if (value := getattr(whole, name)[row]) is not None}
    fields |= {name: float(value) for name in _MARKS if not np.isnan(value := getattr(whole, name)[row])}
    fields |= {name: msgspec.Raw(value) for name in _TEXTS if (value := getattr(whole, name)[row]) is not None}
    return _encode(fields).decode()


def whole_session_table(batch: SessionBatch, offset_ns: int) -> pa.Table:
    """Return a batch's sessions in the columns of the table.

    Args:
        batch: of one process.
        offset_ns: what to add to the process's times to align them with others.
    """
    whole, process = batch.whole, batch.process
    count = len(whole)
    marks = {name: _aligned(getattr(whole, name), offset_ns) for name in _MARKS}
    phases = _Phases(batch, offset_ns)
    durations = _lifecycle(marks, phases.of(EXECUTION))
    for name in KNOWN_PHASES:
        durations[f"{name}_s"] = phases.of(name).seconds()
    columns: dict[str, Any] = {
        "session_id": pa.array(whole.session_id, pa.string()),
        "task_id": _texts(whole.task_id),
        "process_id": _repeated(process.process_id, pa.string(), count),
        "rank": _repeated(process.rank, pa.int64(), count),
        "role": _repeated(process.role or None, pa.string(), count),
        "status": pa.array(whole.status, pa.string()),
        "reason": _values(whole.reason, str, pa.string()),
        "step": _values(whole.step, _step, pa.int64()),
        "model_version": _values(whole.model_version, str, pa.string()),
        "reward": _values(whole.reward, number_of, pa.float64()),
        "tokens": _values(whole.tokens, whole_of, pa.int64()),
        "rollout_stats": _objects(whole.rollout_stats),
        "counters": _objects(whole.counters),
        "phases": phases.lists(),
        "phase_seconds": _other_seconds(phases, durations, count),
    }
    for name, values in (marks | durations).items():
        columns[name] = pa.array(values, mask=np.isnan(values))
    table = pa.table({name: columns[name] for name in NAMES})
    return table.append_column("snapshot_ns", pa.array(whole.time_ns))


def _aligned(marks: Floats, offset_ns: int) -> Floats:
    return _rounded(marks + offset_ns / 1e9) if offset_ns else marks


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
    if not found:
        return _repeated("{}", pa.string(), count)
    return pa.array([_encode(found.get(row, {})).decode() for row in range(count)], pa.string())


class _Phases:
    """The phases of a batch's sessions, those of one session together, in the order in which they began."""

    def __init__(self, batch: SessionBatch, offset_ns: int) -> None:
        spans, self._texts = batch.spans, Texts(batch)
        self._spans = spans
        self._count = len(batch.whole)
        segment = batch.strings.index(PHASE_SEGMENT) + 1 if PHASE_SEGMENT in batch.strings else -1
        rows = np.flatnonzero(numbers(spans, "segment") == segment)
        start_ns = numbers(spans, "start_ns")[rows] + offset_ns
        owner = batch.whole.owner[rows]
        if np.any((owner[1:] == owner[:-1]) & (start_ns[1:] < start_ns[:-1])):
            order = np.lexsort((start_ns, owner))
            rows, start_ns, owner = rows[order], start_ns[order], owner[order]
        duration_ns = numbers(spans, "duration_ns")[rows]
        self._rows = rows
        self._owner = owner
        self._start_us = _microseconds(start_ns)
        self._end_us = _microseconds(start_ns + duration_ns)
        self._is_open = duration_ns < 0
        self._name = numbers(spans, "name")[rows]
        positions = np.flatnonzero(np.bincount(self._name)).tolist()
        self._positions = {batch.text(position) or "": position for position in positions}

    @property
    def names(self) -> list[str]:
        """The names of all phases."""
        return list(self._positions)

    def of(self, name: str) -> _Intervals:
        """Return the phases of one name."""
        where = self._name == self._positions.get(name, -1)
        ended = where & ~self._is_open
        return _Intervals(
            self._count,
            self._owner[where],
            self._start_us[where],
            self._owner[ended],
            self._start_us[ended],
            self._end_us[ended],
        )

    def lists(self) -> pa.Array:
        """Return the phases as the table holds them, a list for each session."""
        offsets = np.zeros(self._count + 1, np.int32)
        np.cumsum(np.bincount(self._owner, minlength=self._count), out=offsets[1:])
        text = self._texts.at
        columns = [
            pa.array(self._start_us / 1e6),
            pa.array(self._end_us / 1e6, mask=self._is_open),
            pa.array(numbers(self._spans, "span_id")[self._rows]),
            text(self._name),
            text(numbers(self._spans, "status")[self._rows]),
            text(numbers(self._spans, "attributes")[self._rows]),
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


def _values(values: Sequence[Any], convert: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    """Return what users gave, made fit for a column; mostly nothing was given."""
    absent = values.count(None)
    if absent == len(values):
        return pa.nulls(len(values), kind)
    if absent:
        return pa.array([None if value is None else convert(value) for value in values], kind)
    return pa.array(list(map(convert, values)), kind)


def _texts(values: Sequence[Any]) -> pa.Array:
    """Return what users gave as text; whole numbers, as ids are, all at once."""
    if set(map(type, values)) == {int}:
        try:
            return pa.array(values, pa.int64()).cast(pa.string())
        except OverflowError:
            pass  # one of them has more than 64 bits
    return _values(values, str, pa.string())


def _objects(texts: Sequence[bytes | None]) -> pa.Array:
    """Return texts of JSON, with an empty object for all that is none."""
    if texts.count(None) == len(texts):
        return _repeated("{}", pa.string(), len(texts))
    found = pa.array(texts, pa.binary()).cast(pa.string())
    is_object = pc.starts_with(found, "{").fill_null(False)
    return found if is_object.true_count == len(found) else pc.if_else(is_object, found, "{}")


def _repeated(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _step(step: int) -> int | None:
    return step if abs(step) < _STEP_LIMIT else None
