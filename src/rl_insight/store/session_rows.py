"""A session as a row of the store's table: which columns there are, and the way there and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any, Final

import msgspec
import pyarrow as pa

from rl_insight.schema.records import read_object
from rl_insight.schema.sessions import KNOWN_PHASES


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


NAMES: Final = Session.__struct_fields__
DURATIONS: Final = tuple(name for name in NAMES if name.endswith("_s"))
JSON_FIELDS: Final = frozenset({"rollout_stats", "phase_seconds", "phases", "counters"})
"""Fields that are no single value; nothing can be sorted by them."""

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
_TYPES: Final[dict[str, pa.DataType]] = {
    "rank": pa.int64(),
    "step": pa.int64(),
    "tokens": pa.int64(),
    "reward": pa.float64(),
    "phases": PHASES_TYPE,
}
_encode = msgspec.json.Encoder().encode


def column_type(name: str) -> pa.DataType:
    """Return the type of a column of the table."""
    return pa.float64() if name.endswith(("_ts", "_s")) else _TYPES.get(name, pa.string())


def session_table(sessions: list[Session], snapshot_ns: list[int | None] | None = None) -> pa.Table:
    """Return sessions in the columns of the table."""
    columns: dict[str, pa.Array] = {}
    for name in NAMES:
        values = [getattr(session, name) for session in sessions]
        if name == "phases":
            columns[name] = _phase_lists(values)
            continue
        if name == "phase_seconds":
            values = [
                {name: value for name, value in seconds.items() if name not in KNOWN_PHASES} for seconds in values
            ]
        if name in JSON_FIELDS:
            values = list(map(json_of, values))
        columns[name] = pa.array(values, column_type(name))
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
    fields = dict(zip(NAMES, values, strict=True))
    for name in ("rollout_stats", "phase_seconds", "counters"):
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


def text_of(value: Any) -> str | None:
    """Return what a user gave as text."""
    return None if value is None else str(value)


def number_of(value: Any) -> float | None:
    """Return a number, also one that JSON spells as text, such as `NaN`."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def whole_of(value: Any) -> int | None:
    """Return a whole number that the store can hold."""
    number = number_of(value)
    return None if number is None or not isfinite(number) or abs(number) >= 2**62 else int(number)
