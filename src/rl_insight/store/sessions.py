"""Sessions in the store: one row each, rewritten with everything that a commit says about them.

The row is the session's record (see `rl_insight.schema.sessions`) in columns. Snapshots come from the session's owner,
phases from any process, in any order; both are merged with the row that is there, so nothing is kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from rl_insight.schema import Batch
from rl_insight.schema.sessions import Phase, SessionEntry, SessionRecord, Snapshot, session_updates
from rl_insight.store.catalog import ProcessState, arriving
from rl_insight.store.ledger import clock_offset


class Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sample of one task; `_ts` are aligned seconds since 1970, `_s` durations in seconds."""

    session_id: str
    task_id: str | None = None
    process_id: str | None = None
    rank: int | None = None
    role: str | None = None
    status: str = "pending"
    """`pending`, `accepted`, `rejected`, `failed`, `dropped`, `cancelled` or `lost`."""
    reason: str | None = None
    step: int | None = None
    model_version: str | None = None
    reward: float | None = None
    tokens: int | None = None
    submit_ts: float | None = None
    enqueue_ts: float | None = None
    wait_return_ts: float | None = None
    finalized_ts: float | None = None
    queue_wait_s: float | None = None
    runner_wait_s: float | None = None
    execution_s: float | None = None
    post_wait_s: float | None = None
    total_s: float | None = None
    generate_s: float | None = None
    reward_s: float | None = None
    toolcall_s: float | None = None
    rollout_stats: dict[str, Any] = {}
    phase_seconds: dict[str, float] = {}
    """Every phase by name, the ones above too."""
    phases: dict[str, list[dict[str, Any]]] = {}
    """Phase name to its intervals: `start_ts`, `end_ts`, `outcome`, `payload`, and the `span_id` in the timeline."""
    counters: dict[str, float] = {}


_TYPES: dict[str, pa.DataType] = {
    "rank": pa.int64(),
    "step": pa.int64(),
    "tokens": pa.int64(),
    "reward": pa.float64(),
    "snapshot_ns": pa.int64(),
}
JSON_FIELDS = frozenset({"rollout_stats", "phase_seconds", "phases", "counters"})
_NAMES = Session.__struct_fields__
_PLAIN = ("rank", "role", "reason", "step", "submit_ts", "enqueue_ts", "wait_return_ts", "finalized_ts")
_DURATIONS = tuple(name for name in _NAMES if name.endswith("_s"))
_FIND_ROWS = "SELECT rowid FROM sessions WHERE session_id IN (SELECT unnest($ids))"
_READ_ROWS = f"SELECT {', '.join(_NAMES)}, snapshot_ns FROM sessions WHERE rowid IN (SELECT unnest($rows))"  # noqa: S608  (constants)
_DELETE_ROWS = "DELETE FROM sessions WHERE rowid IN (SELECT unnest($rows))"
_INSERT_ROWS = f"INSERT INTO sessions ({', '.join(_NAMES)}, snapshot_ns) SELECT * FROM arriving"  # noqa: S608  (constants)


class SessionWriter:
    """Gathers what the batches of one commit say about sessions, then rewrites those sessions' rows."""

    def __init__(self) -> None:
        self._updates: dict[str, list[Any]] = {}
        self._owners: dict[str, str] = {}
        self._contributors: dict[str, str] = {}

    def gather(self, batch: Batch, state: ProcessState) -> None:
        """Take note of a batch's snapshots and phases, with their times aligned."""
        process_id = batch.process.process_id
        for update in session_updates(batch, clock_offset(state.delay_ns, state.delay_hits)):
            self._updates.setdefault(update.session_id, []).append(update)
            self._contributors.setdefault(update.session_id, process_id)
            if update.snapshot is not None:
                self._owners[update.session_id] = process_id

    def write(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Merge what was gathered into the rows, inside the caller's transaction."""
        if not self._updates:
            return
        entries, owners, rows = read_entries(connection, list(self._updates))
        for session_id, updates in self._updates.items():
            entry = entries.setdefault(session_id, SessionEntry(session_id))
            for update in updates:
                entry.add(update)
            owner = self._owners.get(session_id) or owners.get(session_id) or self._contributors[session_id]
            owners[session_id] = owner
        write_entries(connection, entries, owners, rows)


Entries = dict[str, SessionEntry]


def read_entries(connection: duckdb.DuckDBPyConnection, ids: list[str]) -> tuple[Entries, dict[str, str], list[int]]:
    """Return the sessions that have rows, their owners' process ids, and the rows' numbers."""
    # The ids alone are looked through first: the wide columns of all other rows are never read.
    rows = [row for (row,) in connection.execute(_FIND_ROWS, {"ids": ids}).fetchall()]
    entries: Entries = {}
    owners: dict[str, str] = {}
    if not rows:
        return entries, owners, rows
    for *values, snapshot_ns in connection.execute(_READ_ROWS, {"rows": rows}).fetchall():
        session = session_of_row(values)
        entries[session.session_id] = entry_of(session, snapshot_ns)
        if session.process_id is not None:
            owners[session.session_id] = session.process_id
    return entries, owners, rows


def write_entries(
    connection: duckdb.DuckDBPyConnection, entries: Entries, owners: dict[str, str], rows: list[int]
) -> None:
    """Write sessions in place of the rows with these numbers."""
    sessions = [session_of(entry, owners.get(session_id)) for session_id, entry in entries.items()]
    table = session_table(sessions, [entry.snapshot_ns for entry in entries.values()])
    if rows:
        connection.execute(_DELETE_ROWS, {"rows": rows})
    with arriving(connection, table):
        connection.execute(_INSERT_ROWS)


def session_of(entry: SessionEntry, process_id: str | None) -> Session:
    """Return a session's record in the shape of its row."""
    record = entry.record()
    phases: dict[str, list[dict[str, Any]]] = {}
    for phase in sorted(entry.phases.values(), key=lambda phase: (phase.start_ts, phase.span_id)):
        fields = msgspec.to_builtins(phase)
        phases.setdefault(fields.pop("name"), []).append({"outcome": phase.outcome, **fields})
    seconds = {f"{name}_s": name for name in phases}
    return Session(
        session_id=str(record["session_id"]),
        process_id=process_id,
        status=record["status"],
        task_id=_text(record.get("task_id")),
        model_version=_text(record.get("model_version")),
        reward=_number(record.get("reward")),
        tokens=_whole(record.get("tokens")),
        rollout_stats=_mapping(record.get("rollout_stats")),
        counters=_mapping(record.get("counters")),
        phase_seconds={name: record[field] for field, name in seconds.items() if field in record},
        phases=phases,
        **{name: record.get(name) for name in _PLAIN if name != "reason"},
        reason=_text(record.get("reason")),
        **{name: record.get(name) for name in _DURATIONS},
    )


def entry_of(session: Session, snapshot_ns: int | None = None) -> SessionEntry:
    """Return a row as something that updates can be added to."""
    known = {name: getattr(session, name) for name in _PLAIN}
    snapshot = Snapshot(
        session_id=session.session_id,
        task_id=session.task_id,
        status=None if snapshot_ns is None else session.status,
        model_version=session.model_version,
        reward=session.reward,
        tokens=session.tokens,
        rollout_stats=session.rollout_stats or None,
        counters=session.counters or None,
        **known,
    )
    entry = SessionEntry(session.session_id, snapshot, snapshot_ns)
    for name, intervals in session.phases.items():
        for number, fields in enumerate(intervals):
            phase = msgspec.convert({"name": name, **fields}, Phase)
            entry.phases[phase.span_id or f"{name}/{number}"] = phase
    return entry


def record_of(session: Session) -> SessionRecord:
    """Return a row as the session's record, as files hold it."""
    entry = entry_of(session, 0)
    return entry.record()


def session_of_row(values: Iterable[Any]) -> Session:
    """Return the struct of one row of the table."""
    fields = dict(zip(_NAMES, values, strict=True))
    for name in JSON_FIELDS:
        fields[name] = msgspec.json.decode(fields[name]) if fields[name] else {}
    return Session(**fields)


def session_table(sessions: list[Session], snapshot_ns: list[int | None] | None = None) -> pa.Table:
    """Return sessions in the columns of the table."""
    columns: dict[str, pa.Array] = {}
    for name in _NAMES:
        values = [getattr(session, name) for session in sessions]
        if name in JSON_FIELDS:
            columns[name] = pa.array([msgspec.json.encode(value).decode() for value in values], pa.string())
            continue
        kind = pa.float64() if name.endswith(("_ts", "_s")) else _TYPES.get(name, pa.string())
        columns[name] = pa.array(values, kind)
    columns["snapshot_ns"] = pa.array(snapshot_ns or [0] * len(sessions), pa.int64())
    return pa.table(columns)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: Any) -> float | None:
    """Return a number, also one that JSON spells as text, such as `NaN`."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None or not isfinite(number) or abs(number) >= 2**62 else int(number)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
