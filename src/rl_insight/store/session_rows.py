"""A session as a table row: the statement that writes rows, and the conversions in both directions.

Rows are written from the reported marks and phases, for sessions that arrive in parts and for those read from a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import duckdb
import numpy as np

from rl_insight.schema.json_values import json_text, whole_number
from rl_insight.schema.records import read_object
from rl_insight.sessions.durations import WAITS, SessionDurations, durations
from rl_insight.sessions.model import (
    COLUMNS,
    DEFAULTS,
    DERIVED,
    FIELDS,
    KNOWN_PHASES,
    MARKS,
    OBJECTS,
    PHASE_COLUMNS,
    REPORTED,
    StoredSession,
    clean,
)
from rl_insight.sessions.records import PhaseRecord, SessionEntry
from rl_insight.store.frame import Column, Frame, ListColumn, column_of
from rl_insight.store.inserts import NUMPY_TYPES, arriving, frame_of_rows

_REPLACED = {"phases": "list_sort(phases)"} | {name: f"coalesce({name}, {other})" for name, other in DEFAULTS.items()}
_INSERT = f"""
    INSERT INTO sessions BY NAME
    SELECT * REPLACE ({", ".join(f"{value} AS {name}" for name, value in _REPLACED.items())}) FROM arriving
"""  # noqa: S608  (constants)


def kind_of(name: str) -> type[Any]:
    """Return the type of the values in a column of sessions."""
    return NUMPY_TYPES[COLUMNS[name]]


def insert_sessions(connection: duckdb.DuckDBPyConnection, rows: Sequence[Frame]) -> None:
    """Insert sessions, in all columns but the derived ones, together with their durations."""
    with arriving(connection, list(map(_with_durations, rows))):
        connection.execute(_INSERT)


def _with_durations(rows: Frame) -> Frame:
    phases = rows.lists("phases", ("start_ts", "end_ts", "name"))
    found = list(map(durations, *map(rows.to_list, MARKS), phases))
    derived: dict[str, list[Any]] = {
        **{name: [getattr(one, name) for one in found] for name in WAITS},
        **{f"{name}_s": [one.phase_seconds.get(name) for one in found] for name in KNOWN_PHASES},
        "turns": list(map(_turns, rows.to_list("counters"), found)),
        "phase_seconds": [_other_phases(one.phase_seconds) for one in found],
    }
    return Frame(rows.columns | {name: column_of(derived[name], kind_of(name)) for name in DERIVED})


def _turns(counters: str | None, found: SessionDurations) -> int | None:
    """Return the counter `turns`, or else the number of `generate` phases."""
    given = whole_number(read_object(counters).get("turns")) if counters and '"turns"' in counters else None
    return found.generations or None if given is None else given


def _other_phases(seconds: dict[str, float]) -> str | None:
    return json_text({name: seconds[name] for name in sorted(seconds.keys() - KNOWN_PHASES)})


def entry_frame(entries: dict[str, SessionEntry], owners: dict[str, str]) -> Frame:
    """Return sessions by id, and the process ids of their owners, in the columns that `insert_sessions` takes."""
    values: dict[str, list[Any]] = {
        "session_id": list(entries),
        "process_id": [owners.get(session_id) for session_id in entries],
        "status": [entry.status for entry in entries.values()],
    }
    for name in REPORTED:
        reported = [clean(name, getattr(entry.snapshot, name)) for entry in entries.values()]
        values[name] = list(map(json_text, reported)) if name in OBJECTS else reported
    columns: dict[str, Column] = {name: column_of(own, kind_of(name)) for name, own in values.items()}
    lengths = np.array([len(entry.phases) for entry in entries.values()], np.int64)
    phases = [_phase_row(phase) for entry in entries.values() for phase in entry.phases.values()]
    columns["phases"] = ListColumn.of(lengths, frame_of_rows(PHASE_COLUMNS, phases))
    columns["snapshot_ns"] = column_of([entry.snapshot_ns for entry in entries.values()], np.int64)
    return Frame(columns)


def _phase_row(phase: PhaseRecord) -> tuple[Any, ...]:
    """Return a phase in the order of `PHASE_COLUMNS`."""
    span_id = int(phase.span_id or "0", 16)
    return phase.start_ts, phase.end_ts, span_id, phase.name, phase.outcome, json_text(phase.payload)


def session_of_row(values: Iterable[Any]) -> StoredSession:
    """Return the struct of one row of the table."""
    fields = dict(zip(FIELDS, values, strict=True))
    for name in OBJECTS - {"phases"}:
        fields[name] = read_object(fields[name])
    fields["phases"] = _phases_by_name(fields["phases"] or ())
    fields["phase_seconds"] = _every_phase(fields)
    return StoredSession(**fields)


def _phases_by_name(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    phases: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        fields = {"outcome": row["outcome"], "start_ts": row["start_ts"]}
        if row["end_ts"] is not None:
            fields["end_ts"] = row["end_ts"]
        payload = read_object(row["payload"])
        if payload:
            fields["payload"] = payload
        if row["span_id"]:
            fields["span_id"] = f"{row['span_id']:016x}"
        phases.setdefault(row["name"], []).append(fields)
    return phases


def _every_phase(fields: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of each phase: known ones have columns, the others share a JSON column."""
    stored = fields["phase_seconds"]
    names = dict.fromkeys((*fields["phases"], *stored))
    found = {name: fields[f"{name}_s"] if name in KNOWN_PHASES else stored.get(name) for name in names}
    return {name: seconds for name, seconds in found.items() if seconds is not None}
