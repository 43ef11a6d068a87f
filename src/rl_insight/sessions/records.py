"""Session records: the owner's snapshots, plus the phases that any process recorded with the session's id.

Files, the store and importers all use `build_record` to combine them, so a record means the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from rl_insight.schema.batch import Batch
from rl_insight.schema.captured_text import CAPTURED_TEXT, without_texts
from rl_insight.schema.json_values import json_form
from rl_insight.schema.names import PHASE_SEGMENT
from rl_insight.schema.records import read_object
from rl_insight.schema.tables import NO_STEP, seconds_of
from rl_insight.sessions.durations import durations
from rl_insight.sessions.model import (
    ACCEPTED,
    EXECUTION,
    KNOWN_PHASES,
    MARKS,
    OBJECTS,
    PENDING,
    STATUS_OF_OUTCOME,
    Snapshot,
)


class PhaseRecord(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One interval of a session; times are seconds since 1970."""

    name: str
    start_ts: float
    end_ts: float | None = None
    """None while it is open."""
    outcome: str = "ok"
    """`ok`, `error`, `cancelled` or `open`."""
    payload: dict[str, Any] = {}
    span_id: str = ""
    """16 hexadecimal digits; empty if the phase was imported from a file without span ids."""


class Update(msgspec.Struct):
    """One update of a session: a snapshot from its owner, or a phase."""

    session_id: str
    time_ns: int
    snapshot: Snapshot | None = None
    phase: PhaseRecord | None = None
    step: int | None = None


class SessionRecord(dict[str, Any]):
    """The record of a session, without absent fields; `reward_calc_s` is an alias of `reward_s`.

    >>> SessionRecord(reward_s=0.5)["reward_calc_s"]
    0.5
    """

    ALIASES: Final = {"reward_calc_s": "reward_s"}

    def __missing__(self, key: str) -> Any:
        alias = self.ALIASES.get(key)
        if alias is None or not super().__contains__(alias):
            raise KeyError(key)
        return self[alias]

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field, or the default when it is absent."""
        try:
            return self[key]
        except KeyError:
            return default


_FIELDS = Snapshot.__struct_fields__
_BEFORE_DURATIONS, _AFTER_DURATIONS = _FIELDS[: _FIELDS.index("counters")], _FIELDS[_FIELDS.index("counters") :]


def build_record(snapshot: Snapshot, phases: Iterable[PhaseRecord] = ()) -> SessionRecord:
    """Return the complete record of a session.

    >>> snapshot = Snapshot(session_id="s", status="accepted", submit_ts=10.0, enqueue_ts=10.5, finalized_ts=14.0)
    >>> record = build_record(snapshot, [PhaseRecord(name="execution", start_ts=11.0, end_ts=13.0)])
    >>> record["queue_wait_s"], record["runner_wait_s"], record["execution_s"], record["total_s"]
    (0.5, 0.5, 2.0, 4.0)
    """
    ordered = _in_order(phases)
    by_name: dict[str, list[PhaseRecord]] = {}
    for phase in ordered:
        by_name.setdefault(phase.name, []).append(phase)
    record = SessionRecord()
    _copy(record, snapshot, _BEFORE_DURATIONS)
    record["status"] = snapshot.status or _status_of_phases(ordered)
    found = durations(
        **{mark: getattr(snapshot, mark) for mark in MARKS},
        phases=((phase.start_ts, phase.end_ts, phase.name) for phase in ordered),
    )
    fields = {
        "queue_wait_s": found.queue_wait_s,
        "runner_wait_s": found.runner_wait_s,
        "execution_s": found.phase_seconds.get(EXECUTION),
        "post_wait_s": found.post_wait_s,
        "total_s": found.total_s,
    }
    for name in sorted(by_name, key=_known_first):
        fields.setdefault(f"{name}_s", found.phase_seconds.get(name))
    record.update({name: value for name, value in fields.items() if value is not None})
    if by_name:
        record["phases"] = {name: [_phase_fields(phase) for phase in same] for name, same in by_name.items()}
    _copy(record, snapshot, _AFTER_DURATIONS)
    return record


def _copy(record: SessionRecord, snapshot: Snapshot, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(snapshot, name)
        if name == "status" or not (value is None or (name in OBJECTS and not value)):
            record[name] = value


def _known_first(name: str) -> int:
    return KNOWN_PHASES.index(name) if name in KNOWN_PHASES else len(KNOWN_PHASES)


def _in_order(phases: Iterable[PhaseRecord]) -> list[PhaseRecord]:
    return sorted(phases, key=lambda phase: (phase.start_ts, phase.span_id))


def _status_of_phases(phases: list[PhaseRecord]) -> str:
    ended = [phase for phase in phases if phase.end_ts is not None]
    if not ended or len(ended) < len(phases):
        return PENDING
    last = max(ended, key=lambda phase: phase.end_ts or 0.0)
    return STATUS_OF_OUTCOME.get(last.outcome, ACCEPTED)


def _phase_fields(phase: PhaseRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {"start_ts": phase.start_ts}
    if phase.end_ts is not None:
        fields["end_ts"] = phase.end_ts
    fields["outcome"] = phase.outcome
    if phase.payload:
        fields["payload"] = phase.payload
    return fields


# -- JSON


def record_line(record: SessionRecord) -> bytes:
    """Return a record as one line of JSON, without a newline; non-finite numbers become strings."""
    return msgspec.json.encode(json_form(dict(record)))


# -- from batches


_snapshot_decoder = msgspec.json.Decoder(Snapshot)


def session_updates(batch: Batch, offset_ns: int = 0) -> Iterator[Update]:
    """Yield the session updates in a batch, in the order in which they were recorded.

    Args:
        batch: from any process.
        offset_ns: added to the process's timestamps to align them with others.
    """
    yield from _phases(batch, offset_ns)
    if not batch.sessions.session_id:  # the usual case; reading the columns costs more than the rest
        return
    text = batch.text
    for session_id, task_id, status, time_ns, record in batch.sessions.rows():
        name = text(session_id) or ""
        snapshot = _snapshot(name, text(record))
        snapshot.status = text(status) or PENDING
        if snapshot.task_id is None:
            snapshot.task_id = text(task_id)
        snapshot.rank = batch.process.rank
        snapshot.role = batch.process.role or None
        for mark in MARKS:
            time_ts = getattr(snapshot, mark)
            if time_ts is not None and offset_ns:
                setattr(snapshot, mark, round(time_ts + offset_ns / 1e9, 6))
        yield Update(name, time_ns, snapshot=snapshot, step=snapshot.step)


def _snapshot(session_id: str, record: str | None) -> Snapshot:
    """Parse a snapshot; if it is invalid, from a foreign producer, only the id is kept."""
    try:
        snapshot = _snapshot_decoder.decode(record or "")
    except (msgspec.DecodeError, RecursionError):
        return Snapshot(session_id=session_id)
    if str(snapshot.session_id) != session_id:
        snapshot.session_id = session_id
    return snapshot


def _phases(batch: Batch, offset_ns: int) -> Iterator[Update]:
    if PHASE_SEGMENT not in batch.strings:
        return
    phase_segment = batch.strings.index(PHASE_SEGMENT) + 1
    spans, text = batch.spans, batch.text
    rows = [row for row, segment in enumerate(spans.column("segment").tolist()) if segment == phase_segment]
    wanted = ("session_id", "span_id", "name", "start_ns", "duration_ns", "status", "step", "attributes")
    columns = [spans.column(name) for name in wanted]
    for row in rows:
        session, span_id, name, start, duration, status, step, attributes = (column[row] for column in columns)
        session_id = text(session)
        if session_id is None:
            continue
        phase = PhaseRecord(
            name=text(name) or "",
            start_ts=seconds_of(start + offset_ns),
            end_ts=None if duration < 0 else seconds_of(start + offset_ns + duration),
            outcome=text(status) or "ok",
            payload=_payload(text(attributes)),
            span_id=f"{span_id:016x}",
        )
        yield Update(session_id, start, phase=phase, step=None if step == NO_STEP else step)


def _payload(attributes: str | None) -> dict[str, Any]:
    """Return a phase's attributes without text, which belongs to the transcript, see `sessions.transcript`."""
    payload = read_object(attributes)
    return payload if CAPTURED_TEXT.isdisjoint(payload) else without_texts(payload)


class SessionBook(dict[str, "SessionEntry"]):
    """Sessions by id, from batches in any order; for programs without a store."""

    def add(self, batch: Batch) -> list[str]:
        """Apply a batch; return the ids of the sessions it is about."""
        touched: dict[str, None] = {}
        for update in session_updates(batch):
            touched[update.session_id] = None
            self.setdefault(update.session_id, SessionEntry(update.session_id)).add(update)
        return list(touched)

    def records(self) -> list[SessionRecord]:
        """Return the current records of all sessions."""
        return [entry.record() for entry in self.values()]


class SessionEntry:
    """One session: the latest snapshot and all phases, in any order of arrival."""

    __slots__ = ("phases", "snapshot", "snapshot_ns")

    def __init__(self, session_id: str, snapshot: Snapshot | None = None, snapshot_ns: int | None = None) -> None:
        self.snapshot = snapshot or Snapshot(session_id=session_id)
        self.snapshot_ns = snapshot_ns
        self.phases: dict[str, PhaseRecord] = {}

    def add(self, update: Update) -> None:
        """Apply an update; the latest snapshot wins, and an ended phase stays ended."""
        if update.snapshot is not None and (self.snapshot_ns is None or update.time_ns >= self.snapshot_ns):
            self.snapshot, self.snapshot_ns = update.snapshot, update.time_ns
        elif self.snapshot_ns is None and self.snapshot.step is None:
            self.snapshot.step = update.step
        phase = update.phase
        if phase is None:
            return
        known = self.phases.get(phase.span_id)
        if known is None or known.end_ts is None:
            self.phases[phase.span_id] = phase

    @property
    def status(self) -> str:
        """The reported status; before the first report, the status derived from the phases."""
        return self.snapshot.status or _status_of_phases(_in_order(self.phases.values()))

    def record(self) -> SessionRecord:
        """Return the session's record."""
        return build_record(self.snapshot, self.phases.values())
