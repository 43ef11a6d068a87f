"""A session as a table row: the statement that writes rows, and the conversions in both directions.

Rows are written from the reported marks and phases. That statement computes the durations, so they mean the same for
sessions that arrive in parts and for those read from a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import duckdb
import msgspec
import numpy as np

from rl_insight.schema.records import read_object
from rl_insight.sessions.model import (
    COLUMNS,
    DEFAULTS,
    DERIVED,
    EXECUTION,
    FIELDS,
    KNOWN_PHASES,
    OBJECTS,
    REPORTED,
    Session,
    clean,
)
from rl_insight.sessions.records import PhaseRecord, SessionEntry, lifecycle, phase_seconds
from rl_insight.store.frame import Column, Frame, ListColumn, column_of
from rl_insight.store.inserts import NUMPY_TYPES, arriving, frame_of_rows

PHASE_TYPES: Final[dict[str, str]] = {
    "start_ts": "DOUBLE",
    "end_ts": "DOUBLE",
    "span_id": "UBIGINT",
    "name": "VARCHAR",
    "outcome": "VARCHAR",
    "payload": "VARCHAR",
}
"""A session's phases, in order of start; the payload is a JSON object."""
FEW_SESSIONS: Final = 200
"""For up to this many sessions, the durations are computed in Python."""
_encode = msgspec.json.Encoder().encode


def _between(start: str, end: str) -> str:
    """Return the SQL of the seconds between two times; 0 where clock error would make them negative."""
    return f"round(CASE WHEN {end} < {start} THEN 0 ELSE {end} - {start} END, 6)"


def _seconds(intervals: str) -> str:
    """Return the SQL of the seconds covered by at least one of a column's intervals; NULL if there are none.

    Intervals are added in order of start, each with the part after the latest earlier end. Each part is rounded, so
    that rounding errors do not accumulate.
    """
    # Most phases have one interval, which takes a fifth of the time of a `list_reduce`.
    return f"""CASE WHEN len({intervals}) < 2 THEN {intervals}[1].seconds ELSE round(list_reduce(
        {intervals},
        lambda sum, phase: struct_pack(
            name := sum.name,
            start_ts := sum.start_ts,
            end_ts := greatest(sum.end_ts, phase.end_ts),
            seconds := sum.seconds + round(greatest(phase.end_ts - greatest(phase.start_ts, sum.end_ts), 0), 6)
        )
    ).seconds, 6) END"""


def _with(columns: dict[str, str], rows: str) -> str:
    """Return the SELECT that adds columns to those of another.

    A column that later ones use several times is planned once: a lambda takes about 0.5 ms to plan.
    """
    added = ", ".join(f"{expression} AS {name}" for name, expression in columns.items())
    return f"SELECT *, {added} FROM ({rows})"  # noqa: S608  (constants)


_REPLACED = {"phases": "list_sort(phases)"} | {name: f"coalesce({name}, {other})" for name, other in DEFAULTS.items()}
_ENDED = {
    "ended": """list_transform(
        list_filter(phases, lambda phase: phase.end_ts IS NOT NULL),
        lambda phase: struct_pack(
            name := phase.name,
            start_ts := phase.start_ts,
            end_ts := phase.end_ts,
            seconds := round(greatest(phase.end_ts - phase.start_ts, 0), 6)
        )
    )"""
}
_BY_NAME = {
    **{f"{name}_intervals": f"list_filter(ended, lambda phase: phase.name = '{name}')" for name in KNOWN_PHASES},
    "others": f"list_filter(ended, lambda phase: phase.name NOT IN {KNOWN_PHASES})",
}
_OTHER_NAMES = {"names": "list_sort(list_distinct(list_transform(others, lambda phase: phase.name)))"}
_OTHERS = {"groups": "list_transform(names, lambda other: list_filter(others, lambda phase: phase.name = other))"}
_FIRST_START = f"list_filter(phases, lambda phase: phase.name = '{EXECUTION}')[1].start_ts"
_FIRST_END = f"list_min(list_transform({EXECUTION}_intervals, lambda phase: phase.end_ts))"
_DERIVED = {
    "queue_wait_s": _between("submit_ts", "enqueue_ts"),
    "runner_wait_s": _between("enqueue_ts", _FIRST_START),
    "post_wait_s": _between(_FIRST_END, "wait_return_ts"),
    "total_s": _between("submit_ts", "greatest(wait_return_ts, finalized_ts)"),
    **{f"{name}_s": _seconds(f"{name}_intervals") for name in KNOWN_PHASES},
    "turns": """coalesce(
        CASE WHEN json_valid(counters) THEN try_cast(json_extract_string(counters, '$.turns') AS DOUBLE) END,
        nullif(len(generate_intervals), 0)
    )::BIGINT""",
    "phase_seconds": f"""nullif(
        to_json(map(names, list_transform(groups, lambda intervals: {_seconds("intervals")})))::VARCHAR, '{{}}'
    )""",
}
_ROWS = f"""
    SELECT * REPLACE ({", ".join(f"{value} AS {name}" for name, value in _REPLACED.items())}) FROM arriving
"""  # noqa: S608  (constants)
for _columns in (_ENDED, _BY_NAME, _OTHER_NAMES, _OTHERS, _DERIVED):
    _ROWS = _with(_columns, _ROWS)
_INSERT_COMPUTED = f"""
    INSERT INTO sessions BY NAME
    SELECT * REPLACE ({", ".join(f"{value} AS {name}" for name, value in _REPLACED.items())}) FROM arriving
"""  # noqa: S608  (constants)
_HELPERS = ", ".join((*_ENDED, *_BY_NAME, *_OTHER_NAMES, *_OTHERS))
_INSERT = f"INSERT INTO sessions BY NAME SELECT * EXCLUDE ({_HELPERS}) FROM ({_ROWS})"  # noqa: S608  (constants)


def kind_of(name: str) -> type[Any]:
    """Return the type of the values in a column of sessions."""
    return NUMPY_TYPES[COLUMNS[name]]


def insert_sessions(connection: duckdb.DuckDBPyConnection, rows: Sequence[Frame]) -> None:
    """Insert sessions, in all columns but the derived ones, together with their durations."""
    with arriving(connection, rows):
        connection.execute(_INSERT)


def insert_entries(
    connection: duckdb.DuckDBPyConnection, entries: dict[str, SessionEntry], owners: dict[str, str]
) -> None:
    """Insert sessions by id, with the process ids of their owners.

    Planning the statement that computes durations takes 17 ms of CPU time, computing them for one session in Python 40
    µs, so the few sessions of a live commit are computed here.
    """
    frame = entry_frame(entries, owners)
    if len(entries) > FEW_SESSIONS or any(_has_turns(entry.snapshot.counters) for entry in entries.values()):
        insert_sessions(connection, [frame])
        return
    derived = [_derived(entry) for entry in entries.values()]
    columns = {name: column_of([row[name] for row in derived], kind_of(name)) for name in DERIVED}
    with arriving(connection, [Frame(frame.columns | columns)]):
        connection.execute(_INSERT_COMPUTED)


def _has_turns(counters: Any) -> bool:
    return isinstance(counters, dict) and "turns" in counters


def _derived(entry: SessionEntry) -> dict[str, Any]:
    """Return the columns that the statement computes, for one session."""
    by_name: dict[str, list[PhaseRecord]] = {}
    for phase in sorted(entry.phases.values(), key=lambda phase: phase.start_ts):
        by_name.setdefault(phase.name, []).append(phase)
    others = {name: phase_seconds(by_name[name]) for name in sorted(by_name.keys() - set(KNOWN_PHASES))}
    generations = [phase for phase in by_name.get("generate", ()) if phase.end_ts is not None]
    return {
        **lifecycle(entry.snapshot, by_name.get(EXECUTION, [])),
        **{f"{name}_s": phase_seconds(by_name.get(name, [])) for name in KNOWN_PHASES},
        "turns": len(generations) or None,
        "phase_seconds": json_of({name: seconds for name, seconds in others.items() if seconds is not None}),
    }


def entry_frame(entries: dict[str, SessionEntry], owners: dict[str, str]) -> Frame:
    """Return sessions by id, and the process ids of their owners, in the columns that `insert_sessions` takes."""
    values: dict[str, list[Any]] = {
        "session_id": list(entries),
        "process_id": [owners.get(session_id) for session_id in entries],
        "status": [entry.status for entry in entries.values()],
    }
    for name in REPORTED:
        reported = [clean(name, getattr(entry.snapshot, name)) for entry in entries.values()]
        values[name] = list(map(json_of, reported)) if name in OBJECTS else reported
    columns: dict[str, Column] = {name: column_of(own, kind_of(name)) for name, own in values.items()}
    lengths = np.array([len(entry.phases) for entry in entries.values()], np.int64)
    phases = [_phase_row(phase) for entry in entries.values() for phase in entry.phases.values()]
    columns["phases"] = ListColumn.of(lengths, frame_of_rows(PHASE_TYPES, phases))
    columns["snapshot_ns"] = column_of([entry.snapshot_ns for entry in entries.values()], np.int64)
    return Frame(columns)


def _phase_row(phase: PhaseRecord) -> tuple[Any, ...]:
    """Return a phase in the order of `PHASE_TYPES`."""
    span_id = int(phase.span_id or "0", 16)
    return phase.start_ts, phase.end_ts, span_id, phase.name, phase.outcome, json_of(phase.payload)


def session_of_row(values: Iterable[Any]) -> Session:
    """Return the struct of one row of the table."""
    fields = dict(zip(FIELDS, values, strict=True))
    for name in OBJECTS - {"phases"}:
        fields[name] = read_object(fields[name])
    fields["phases"] = _phases_by_name(fields["phases"] or ())
    fields["phase_seconds"] = _every_phase(fields)
    return Session(**fields)


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


def json_of(value: dict[str, Any] | None) -> str | None:
    """Return an object as a JSON string; None if it is empty."""
    return _encode(value).decode() if value else None
