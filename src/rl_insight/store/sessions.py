"""Sessions in the store: one row each, rewritten by each commit that updates them.

The row is the session's record (see `rl_insight.sessions.records`) in columns. Snapshots come from the session's owner
and phases from any process, in any order; both are merged into the existing row, so nothing is kept in memory.
"""

from __future__ import annotations

from typing import Any, Final

import duckdb
import msgspec
import numpy as np

from rl_insight.schema import Batch
from rl_insight.sessions.model import DEFAULTS, FIELDS, PENDING, REPORTED, Snapshot, StoredSession
from rl_insight.sessions.records import PhaseRecord, SessionEntry, SessionRecord, Update, session_updates
from rl_insight.store.catalog import ProcessState
from rl_insight.store.frame import Frame
from rl_insight.store.inserts import arriving
from rl_insight.store.session_batch import SessionBatch, plain
from rl_insight.store.session_rows import entry_frame, insert_sessions, session_of_row

FELL_SILENT: Final = "its process fell silent"
"""The reason for a session that the server closed as lost; reverted if the process reports again."""

_FIND_CLOSED = """
    SELECT session_id FROM sessions
    WHERE status = 'lost' AND reason = $reason AND process_id IN (SELECT unnest($processes))
"""
_FIND_ROWS = "SELECT rowid FROM sessions WHERE session_id IN (SELECT unnest($ids))"
# Sessions that have a row, and those that arrive more than once.
_FIND_KNOWN = """
    SELECT session_id FROM sessions SEMI JOIN arriving USING (session_id)
    UNION ALL
    SELECT session_id FROM arriving GROUP BY session_id HAVING count(*) > 1
"""
_READ_ROWS = f"SELECT {', '.join(FIELDS)}, snapshot_ns FROM sessions WHERE rowid IN (SELECT unnest($rows))"  # noqa: S608  (constants)
_DELETE_ROWS = "DELETE FROM sessions WHERE rowid IN (SELECT unnest($rows))"


class SessionWriter:
    """Collects the session updates of one commit, then rewrites the rows of those sessions."""

    def __init__(self) -> None:
        self._updates: dict[str, list[Update]] = {}
        self._owners: dict[str, str] = {}
        self._contributors: dict[str, str] = {}
        self._complete: list[SessionBatch] = []
        self._returned: set[str] = set()

    def reopen(self, process_id: str) -> None:
        """Reopen the lost sessions of a process that fell silent and reports again."""
        self._returned.add(process_id)

    def gather(self, batch: Batch, state: ProcessState) -> None:
        """Collect a batch's snapshots and phases, with aligned times."""
        offset_ns = state.intake.clock.offset_ns
        if isinstance(batch, SessionBatch) and not offset_ns:
            self._complete.append(batch)
            return
        for update in session_updates(plain(batch), offset_ns):
            self._add(update, batch.process.process_id)

    def _add(self, update: Update, process_id: str) -> None:
        self._updates.setdefault(update.session_id, []).append(update)
        self._contributors.setdefault(update.session_id, process_id)
        if update.snapshot is not None:
            self._owners[update.session_id] = process_id

    def write(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Merge the updates into the rows, inside the caller's transaction."""
        if self._complete:
            self._write_complete(connection)
        closed = self._closed_sessions(connection) if self._returned else []
        if not self._updates and not closed:
            return
        entries, owners, rows = read_entries(connection, [*closed, *self._updates])
        for session_id in closed:
            _reopen(entries[session_id])
        for session_id, updates in self._updates.items():
            entry = entries.setdefault(session_id, SessionEntry(session_id))
            for update in updates:
                entry.add(update)
            owner = self._owners.get(session_id) or owners.get(session_id) or self._contributors[session_id]
            owners[session_id] = owner
        write_entries(connection, entries, owners, rows)

    def _closed_sessions(self, connection: duckdb.DuckDBPyConnection) -> list[str]:
        given = {"reason": FELL_SILENT, "processes": list(self._returned)}
        return [session_id for (session_id,) in connection.execute(_FIND_CLOSED, given).fetchall()]

    def _write_complete(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Insert the complete sessions that are new; the others have to be merged."""
        frames = [batch.rows for batch in self._complete]
        with arriving(connection, [Frame({"session_id": frame.columns["session_id"]}) for frame in frames]):
            known = {session_id for (session_id,) in connection.execute(_FIND_KNOWN).fetchall()}
        known |= self._updates.keys()
        if known:
            frames = [self._unknown(batch, known) for batch in self._complete]
        insert_sessions(connection, frames)

    def _unknown(self, batch: SessionBatch, known: set[str]) -> Frame:
        """Return a batch's new sessions; the others become updates."""
        is_new = np.array([session_id not in known for session_id in batch.rows.to_list("session_id")], np.bool_)
        if is_new.all():
            return batch.rows
        for update in session_updates(plain(batch), 0):
            if update.session_id in known:
                self._add(update, batch.process.process_id)
        return batch.rows.take(is_new)


def _reopen(entry: SessionEntry) -> None:
    entry.snapshot.status = PENDING
    entry.snapshot.reason = entry.snapshot.finalized_ts = None
    entry.snapshot_ns = entry.snapshot_ns or None


Entries = dict[str, SessionEntry]


def read_entries(connection: duckdb.DuckDBPyConnection, ids: list[str]) -> tuple[Entries, dict[str, str], list[int]]:
    """Return the sessions that have rows, their owners' process ids, and the rows' numbers."""
    # Only the ids are scanned first: the wide columns of all other rows are never read.
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
    """Write sessions, replacing the rows with these numbers."""
    if rows:
        connection.execute(_DELETE_ROWS, {"rows": rows})
    insert_sessions(connection, [entry_frame(entries, owners)])


def entry_of(session: StoredSession, snapshot_ns: int | None = None) -> SessionEntry:
    """Return a row as an entry that accepts updates."""
    snapshot = Snapshot(
        session_id=session.session_id,
        status=None if snapshot_ns is None else session.status,
        **{name: _reported(session, name) for name in REPORTED},
    )
    entry = SessionEntry(session.session_id, snapshot, snapshot_ns)
    for name, intervals in session.phases.items():
        for number, fields in enumerate(intervals):
            phase = msgspec.convert({"name": name, **fields}, PhaseRecord)
            entry.phases[phase.span_id or f"{name}/{number}"] = phase
    return entry


def _reported(session: StoredSession, name: str) -> Any:
    """Return a field as its owner reported it: empty and default values were absent."""
    value = getattr(session, name)
    is_default = name in DEFAULTS and value == getattr(session, DEFAULTS[name])
    return None if value == {} or is_default else value


def record_of(session: StoredSession) -> SessionRecord:
    """Return a row as the session's record, in the form used in files."""
    entry = entry_of(session, 0)
    return entry.record()
