"""Sessions: listed, in flight, and closed when their process is gone."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from rl_insight.intake import silence_ns
from rl_insight.sessions.model import FIELDS, LOST, SORTABLE, StoredSession
from rl_insight.sessions.records import SessionRecord
from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor, Parameters, checked_limit, conditions, like_pattern, structs
from rl_insight.store.queries.process_ends import register_ends
from rl_insight.store.queries.steps import time_of_steps
from rl_insight.store.run_store import RunStore
from rl_insight.store.session_rows import session_of_row
from rl_insight.store.sessions import FELL_SILENT, read_entries, record_of, write_entries
from rl_insight.store.tables import SECOND

SessionDetail = Literal["full", "phases", "brief"]
"""How much of each session is returned."""


class SessionInFlight(msgspec.Struct, frozen=True):
    """A session that has not ended, and its current phase."""

    session_id: str
    task_id: str | None
    process_id: str | None
    role: str | None
    rank: int | None
    step: int | None
    age_s: float
    """Since it was submitted."""
    phase: str | None
    """The open phase that started last; None between phases, or before its first flush."""
    phase_age_s: float | None
    open_phases: int


class SessionStep(msgspec.Struct, frozen=True):
    """How long the finished sessions of one step took, from submission to the end, in seconds."""

    step: int
    p50_s: float
    p95_s: float
    max_s: float


_COLUMNS = ", ".join(FIELDS)
_SESSIONS = f"""
    SELECT {_COLUMNS} FROM sessions WHERE {{where}}
    ORDER BY {{order}} {{direction}} NULLS LAST, session_id LIMIT $limit OFFSET $offset
"""  # noqa: S608  (constants)
_COUNT = "SELECT count(*) FROM sessions WHERE {where}"
_STEPS = """
    SELECT step, quantile_cont(total_s, 0.5), quantile_cont(total_s, 0.95), max(total_s)
    FROM sessions WHERE step IS NOT NULL AND isfinite(total_s) AND {where} GROUP BY step ORDER BY step
"""
_FRAGMENTS = {
    "session_id": "session_id = $session_id",
    "task_id": "task_id = $task_id",
    "status": "list_contains($status, status)",
    "role": "role = $role",
    "rank": "rank = $rank",
    "first_step": "step >= $first_step",
    "last_step": "step <= $last_step",
    "longer_than_s": "total_s >= $longer_than_s",
    "least_reward": "reward >= $least_reward",
    "most_reward": "reward <= $most_reward",
    "least_tokens": "tokens >= $least_tokens",
    "most_tokens": "tokens <= $most_tokens",
    "least_turns": "turns >= $least_turns",
    "most_turns": "turns <= $most_turns",
    "group_id": "group_id = $group_id",
    "model_version": "model_version = $model_version",
    "reason": "reason ILIKE $reason ESCAPE '!'",
    "phase": "list_contains(list_transform(phases, lambda phase: phase.name), $phase)",
    "text": "(session_id ILIKE $text ESCAPE '!' OR task_id ILIKE $text ESCAPE '!' OR reason ILIKE $text ESCAPE '!')",
}
_IN_COUNTED_STEPS = "(step IS NULL AND submit_ts >= $from_ts AND submit_ts < $until_ts)"
_COUNTED = {
    "first_step": f"(step >= $first_step OR {_IN_COUNTED_STEPS})",
    "last_step": f"(step <= $last_step OR {_IN_COUNTED_STEPS})",
}

_IN_FLIGHT = """
    WITH open_phases AS (
        SELECT session_id, count(*) AS running, max(start_ns + clock_offset_ns) AS began_ns,
            arg_max(name, start_ns + clock_offset_ns) AS phase,
            arg_max(until_ns, start_ns + clock_offset_ns) AS phase_until_ns
        FROM open_span_data JOIN lanes USING (lane_id) JOIN names USING (name_id) JOIN processes USING (process)
            JOIN process_ends USING (process)
        WHERE segment = 'phase' AND session_id IS NOT NULL GROUP BY session_id
    ),
    owners AS (SELECT process_id, until_ns FROM processes JOIN process_ends USING (process))
    SELECT session_id, task_id, process_id, role, rank, step, coalesce(submit_ts, began_ns / 1e9),
        coalesce(until_ns, phase_until_ns, $now_ns), phase, began_ns, phase_until_ns, coalesce(running, 0)
    FROM sessions LEFT JOIN open_phases USING (session_id) LEFT JOIN owners USING (process_id) WHERE status = 'pending'
    ORDER BY 7 LIMIT $limit
"""
_OWNERS = """
    SELECT process_id, final, last_seen_ns, heartbeat_s FROM processes
    WHERE delay_ns IS NOT NULL AND process_id IN (SELECT process_id FROM sessions WHERE status = 'pending')
"""
_PENDING_OF = """
    SELECT session_id, process_id FROM sessions WHERE status = 'pending' AND process_id IN (SELECT unnest($owners))
"""


SAMPLE: Final = "sample"
"""The order in which the first sessions are an even sample of all matches."""


class SessionConditions(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions to look for; all conditions must match."""

    session_id: str | None = None
    task_id: str | None = None
    status: list[str] | None = None
    role: str | None = None
    rank: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    longer_than_s: float | None = None
    least_reward: float | None = None
    most_reward: float | None = None
    least_tokens: int | None = None
    most_tokens: int | None = None
    least_turns: int | None = None
    most_turns: int | None = None
    group_id: str | None = None
    model_version: str | None = None
    reason: str | None = None
    phase: str | None = None
    text: str | None = None


def sessions(
    cursor: Cursor,
    chosen: SessionConditions | None = None,
    *,
    order: str = "submit_ts",
    descending: bool = True,
    limit: int = 100,
    offset: int = 0,
    detail: SessionDetail = "full",
) -> tuple[list[StoredSession], int]:
    """Return a page of the sessions that match every given condition, and how many match in total.

    With `order=sample`, the first ones are an even sample of all matches. `detail=phases` leaves out payloads, counters
    and rollout statistics; `brief` also leaves out the phases except for their seconds.
    """
    if order not in SORTABLE and order != SAMPLE:
        raise QueryError(f"cannot sort by {order!r}: choose one of {', '.join(SORTABLE)} or {SAMPLE}.")
    if not 0 <= offset < 2**31:
        raise QueryError(f"offset {offset} is out of range.")
    where, given = matching_sessions(cursor, chosen or SessionConditions())
    ((total,),) = cursor.execute(_COUNT.format(where=where), given).fetchall()
    # The first ones by hash are a sample that is even over time.
    by = "hash(session_id)" if order == SAMPLE else order
    sql = _SESSIONS.format(where=where, order=by, direction="DESC" if descending else "ASC")
    rows = cursor.execute(sql, given | {"limit": checked_limit(limit), "offset": offset}).fetchall()
    return [_with_detail(session_of_row(row), detail) for row in rows], total


def session_steps(cursor: Cursor, chosen: SessionConditions | None = None) -> list[SessionStep]:
    """Return how long the finished sessions of each step took (`total_s`): all that match every given condition."""
    where, given = matching_sessions(cursor, chosen or SessionConditions())
    return structs(cursor, SessionStep, _STEPS.format(where=where), given)


def matching_sessions(cursor: Cursor, chosen: SessionConditions) -> tuple[str, Parameters]:
    """Return a WHERE clause for the sessions that match, and its parameters.

    A session without a step belongs to the counted step in which it was submitted.
    """
    given = msgspec.structs.asdict(chosen)
    given |= {name: like_pattern(given[name]) for name in ("reason", "text") if given[name] is not None}
    is_by_step = chosen.first_step is not None or chosen.last_step is not None
    counted = time_of_steps(cursor, chosen.first_step, chosen.last_step) if is_by_step else None
    where, given = conditions(_FRAGMENTS if counted is None else _FRAGMENTS | _COUNTED, given)
    if counted is not None:
        given |= {"from_ts": counted[0] / SECOND, "until_ts": counted[1] / SECOND}
    return where, given


def _with_detail(session: StoredSession, detail: SessionDetail) -> StoredSession:
    if detail == "full":
        return session
    phases = {} if detail == "brief" else {name: _without_payloads(some) for name, some in session.phases.items()}
    return msgspec.structs.replace(session, phases=phases, counters={}, rollout_stats={})


def _without_payloads(intervals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in interval.items() if name != "payload"} for interval in intervals]


def session_record(cursor: Cursor, session_id: str) -> SessionRecord | None:
    """Return the record of a session, as in files; None if it is unknown."""
    found, _ = sessions(cursor, SessionConditions(session_id=session_id), limit=1)
    return record_of(found[0]) if found else None


def sessions_in_flight(cursor: Cursor, now_ns: int, limit: int = 1_000) -> list[SessionInFlight]:
    """Return the sessions that have not ended, the oldest first, with the phase each of them is in.

    Those of a process that ended or fell silent are as old as they were at its last sign of life.
    """
    found = []
    register_ends(cursor, now_ns)
    rows = cursor.execute(_IN_FLIGHT, {"limit": checked_limit(limit), "now_ns": now_ns}).fetchall()
    for *place, began_s, until_ns, phase, phase_ns, phase_until_ns, running in rows:
        age_s = 0.0 if began_s is None else max(0.0, until_ns / SECOND - began_s)
        phase_age_s = None if phase_ns is None else max(0, phase_until_ns - phase_ns) / SECOND
        known: tuple[Any, ...] = (*place, age_s, phase, phase_age_s, running)
        found.append(SessionInFlight(*known))
    return found


def close_lost_sessions(
    store: RunStore, now_ns: int, grace_s: float = 30.0, *, listening_since_ns: int = 0
) -> list[str]:
    """Close the sessions whose process ended or fell silent without finishing them; return their ids.

    If a silent process reports again, the next commit of its batches reverts this.

    Args:
        store: the run's store.
        now_ns: the server's time.
        grace_s: how long to wait beyond the heartbeats of a silent process, or after the last batch of one that ended:
            other batches may still be in flight.
        listening_since_ns: when the server started. Silence counts from then on: no process could report while the
            server was down.
    """

    def abandoned(cursor: Cursor) -> dict[str, tuple[bool, int]]:
        owners = {}
        for process_id, final, last_seen_ns, heartbeat_s in cursor.execute(_OWNERS).fetchall():
            quiet_ns = now_ns - max(last_seen_ns, listening_since_ns)
            if quiet_ns > (0 if final else silence_ns(heartbeat_s)) + grace_s * SECOND:
                owners[process_id] = (final, last_seen_ns)
        return owners

    with store.reader() as cursor:
        if not abandoned(cursor):
            return []
    with store.writing() as connection:
        silent = abandoned(connection)
        found = dict(connection.execute(_PENDING_OF, {"owners": list(silent)}).fetchall())
        entries, owners, rows = read_entries(connection, list(found))
        for session_id, entry in entries.items():
            ended, last_seen_ns = silent[found[session_id]]
            entry.snapshot.status = LOST
            entry.snapshot.reason = "its process ended" if ended else FELL_SILENT
            entry.snapshot.finalized_ts = round(last_seen_ns / SECOND, 6)
            entry.snapshot_ns = entry.snapshot_ns or 0
        write_entries(connection, entries, owners, rows)
    return list(entries)
