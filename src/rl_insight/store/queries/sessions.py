"""Sessions and findings: written by the analysis, listed here."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor, checked_limit, conditions, like_pattern
from rl_insight.store.run_store import RunStore


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
    rollout_stats: dict[str, int] = {}
    phase_seconds: dict[str, float] = {}
    """Every phase by name, the ones above too."""
    phases: dict[str, list[dict[str, Any]]] = {}
    counters: dict[str, float] = {}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something the analysis found, with its evidence."""

    finding_id: str
    kind: str
    severity: str
    title: str
    start_ns: int
    end_ns: int
    step: int | None = None
    lanes: list[int] = []
    evidence: dict[str, Any] = {}
    updated_ns: int = 0


_TYPES: dict[str, pa.DataType] = {
    "rank": pa.int64(),
    "step": pa.int64(),
    "tokens": pa.int64(),
    "reward": pa.float64(),
    "start_ns": pa.int64(),
    "end_ns": pa.int64(),
    "updated_ns": pa.int64(),
}
_JSON = {"rollout_stats", "phase_seconds", "phases", "counters", "lanes", "evidence"}
_COLUMNS = ", ".join(Session.__struct_fields__)
_SESSIONS = f"""
    SELECT {_COLUMNS} FROM sessions WHERE {{where}}
    ORDER BY {{order}} {{direction}} NULLS LAST, session_id LIMIT $limit OFFSET $offset
"""  # noqa: S608  (constants)
_COUNT = "SELECT count(*) FROM sessions WHERE {where}"
_FRAGMENTS = {
    "session_id": "session_id = $session_id",
    "task_id": "task_id = $task_id",
    "status": "list_contains($status, status)",
    "role": "role = $role",
    "rank": "rank = $rank",
    "first_step": "step >= $first_step",
    "last_step": "step <= $last_step",
    "longer": "total_s >= $longer",
    "text": "(session_id ILIKE $text ESCAPE '!' OR task_id ILIKE $text ESCAPE '!' OR reason ILIKE $text ESCAPE '!')",
}
SORTABLE = tuple(name for name in Session.__struct_fields__ if name not in _JSON)


def write_sessions(store: RunStore, sessions: list[Session]) -> None:
    """Write sessions, in place of those with the same ids."""
    if sessions:
        store.replace_rows("sessions", "session_id", _rows(sessions))


def write_findings(store: RunStore, findings: list[Finding]) -> None:
    """Write findings, in place of those with the same ids."""
    if findings:
        store.replace_rows("findings", "finding_id", _rows(findings))


def sessions(
    cursor: Cursor,
    *,
    session_id: str | None = None,
    task_id: str | None = None,
    status: list[str] | None = None,
    role: str | None = None,
    rank: int | None = None,
    first_step: int | None = None,
    last_step: int | None = None,
    longer_than_s: float | None = None,
    text: str | None = None,
    order: str = "submit_ts",
    descending: bool = True,
    limit: int = 100,
    offset: int = 0,
) -> tuple[list[Session], int]:
    """Return a page of the sessions that fit every condition given, and how many fit in all."""
    if order not in SORTABLE:
        raise QueryError(f"cannot sort by {order!r}: choose one of {', '.join(SORTABLE)}.")
    if not 0 <= offset < 2**31:
        raise QueryError(f"offset {offset} is out of range.")
    where, given = conditions(
        _FRAGMENTS,
        {
            "session_id": session_id,
            "task_id": task_id,
            "status": status,
            "role": role,
            "rank": rank,
            "first_step": first_step,
            "last_step": last_step,
            "longer": longer_than_s,
            "text": None if text is None else like_pattern(text),
        },
    )
    ((total,),) = cursor.execute(_COUNT.format(where=where), given).fetchall()
    sql = _SESSIONS.format(where=where, order=order, direction="DESC" if descending else "ASC")
    rows = cursor.execute(sql, given | {"limit": checked_limit(limit), "offset": offset}).fetchall()
    return [_struct(Session, row) for row in rows], total


def findings(cursor: Cursor) -> list[Finding]:
    """Return all findings, the latest first."""
    columns = ", ".join(Finding.__struct_fields__)
    rows = cursor.execute(f"SELECT {columns} FROM findings ORDER BY start_ns DESC").fetchall()  # noqa: S608  (constants)
    return [_struct(Finding, row) for row in rows]


def _rows(records: list[Any]) -> pa.Table:
    columns = {}
    for name in records[0].__struct_fields__:
        values = [getattr(record, name) for record in records]
        if name in _JSON:
            columns[name] = pa.array([msgspec.json.encode(value).decode() for value in values], pa.string())
            continue
        kind = pa.float64() if name.endswith(("_ts", "_s")) else _TYPES.get(name, pa.string())
        columns[name] = pa.array(values, kind)
    return pa.table(columns)


def _struct(kind: type[Any], row: tuple[Any, ...]) -> Any:
    values = dict(zip(kind.__struct_fields__, row, strict=True))
    for name in _JSON & values.keys():
        values[name] = msgspec.json.decode(values[name])
    return kind(**values)
