"""A session as a row of the store's table: which columns there are, and the way there and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from rl_insight.schema.records import read_object
from rl_insight.sessions.model import COLUMNS, FIELDS, KNOWN_PHASES, OBJECTS, Session

PHASES_TYPE: Final = pa.list_(
    pa.struct(
        {
            "start_ts": pa.float64(),
            "end_ts": pa.float64(),
            "span_id": pa.uint64(),
            "name": pa.string(),
            "outcome": pa.string(),
            "payload": pa.string(),
        }
    )
)
"""A session's phases in the order in which they began; the payload is the text of a JSON object."""
ARROW: Final = {"VARCHAR": pa.string(), "BIGINT": pa.int64(), "DOUBLE": pa.float64()}
_encode = msgspec.json.Encoder().encode


def session_table(sessions: list[Session], snapshot_ns: list[int | None] | None = None) -> pa.Table:
    """Return sessions in the columns of the table."""
    columns: dict[str, pa.Array] = {}
    for name in FIELDS:
        values = [getattr(session, name) for session in sessions]
        if name == "phases":
            columns[name] = _phase_lists(values)
            continue
        if name == "phase_seconds":
            values = [
                {name: value for name, value in seconds.items() if name not in KNOWN_PHASES} for seconds in values
            ]
        if name in OBJECTS:
            values = list(map(json_of, values))
        columns[name] = pa.array(values, ARROW[COLUMNS[name]])
    columns["snapshot_ns"] = pa.array(snapshot_ns or [0] * len(sessions), pa.int64())
    return pa.table(columns)


def _phase_lists(sessions: list[dict[str, list[dict[str, Any]]]]) -> pa.Array:
    offsets, rows = [0], []
    for phases in sessions:
        rows += sorted(_phase_rows(phases), key=lambda row: (row[0], row[2]))
        offsets.append(len(rows))
    kinds = list(PHASES_TYPE.value_type)
    columns = zip(*rows, strict=True) if rows else ((),) * len(kinds)
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, kinds, strict=True)]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.StructArray.from_arrays(arrays, fields=kinds))


def _phase_rows(phases: dict[str, list[dict[str, Any]]]) -> Iterator[tuple[Any, ...]]:
    for name, intervals in phases.items():
        for fields in intervals:
            payload = fields.get("payload")
            yield (
                fields["start_ts"],
                fields.get("end_ts"),
                int(fields.get("span_id") or "0", 16),
                name,
                fields.get("outcome", "ok"),
                json_of(payload),
            )


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
    """Return the seconds of each phase: the known ones have columns, the others stand in one text."""
    stored = fields["phase_seconds"]
    names = dict.fromkeys((*fields["phases"], *stored))
    found = {name: fields[f"{name}_s"] if name in KNOWN_PHASES else stored.get(name) for name in names}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def json_of(value: dict[str, Any] | None) -> str | None:
    """Return an object as the text of JSON; None where there is nothing in it."""
    return _encode(value).decode() if value else None
