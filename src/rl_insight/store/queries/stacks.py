"""Stacks that processes sent: the latest of each process, grouped by location."""

from __future__ import annotations

from typing import Any

import msgspec

from rl_insight.intake import liveness
from rl_insight.schema.stacks import STACKS_EVENT, Stack, read_told
from rl_insight.store.queries.base import Cursor

_LATEST = """
    WITH reported AS (
        SELECT
            coalesce(CASE WHEN json_valid(attributes) THEN json_extract_string(attributes, '$.process_id') END,
                process_id) AS process_id,
            time_ns + clock_offset_ns AS aligned_ns, attributes
        FROM event_data JOIN lanes USING (lane_id) JOIN processes USING (process)
        WHERE name = $name
    )
    SELECT process_id, role, rank, host, aligned_ns, attributes
    FROM reported JOIN processes USING (process_id)
    QUALIFY row_number() OVER (PARTITION BY process_id ORDER BY aligned_ns DESC) = 1
    ORDER BY role, rank, process_id
"""
_RUNNING = """
    SELECT process_id, coalesce(host, ''), last_seen_ns, heartbeat_s FROM processes
    WHERE NOT final AND delay_ns IS NOT NULL ORDER BY process
"""


class ProcessStacks(msgspec.Struct, frozen=True, kw_only=True):
    """The stacks that one process sent last."""

    process_id: str
    role: str = ""
    rank: int | None = None
    host: str = ""
    time_ns: int
    stacks: list[Stack]


class StackGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Processes whose main threads are at the same location."""

    frames: list[str]
    """Of the first process, the innermost first."""
    processes: list[ProcessStacks]


def running_processes(cursor: Cursor, now_ns: int) -> tuple[list[str], dict[str, str]]:
    """Return the live processes of a run, and the silent ones with their hosts; ended ones are left out."""
    live, silent = [], {}
    for process_id, host, last_seen_ns, heartbeat_s in cursor.execute(_RUNNING).fetchall():
        state = liveness(final=False, last_seen_ns=last_seen_ns, heartbeat_s=heartbeat_s or 5.0, now_ns=now_ns)
        if state == "live":
            live.append(process_id)
        else:
            silent[process_id] = host
    return live, silent


def stack_groups(cursor: Cursor) -> list[StackGroup]:
    """Return the latest stacks of all processes, grouped by location.

    The smallest group comes first: it is likely to block the others.
    """
    groups: dict[tuple[str, ...], list[ProcessStacks]] = {}
    for process in map(_process_stacks, cursor.execute(_LATEST, {"name": STACKS_EVENT}).fetchall()):
        frames = process.stacks[0].frames if process.stacks else []
        groups.setdefault(tuple(function_of(frame) for frame in frames), []).append(process)
    found = [
        StackGroup(frames=members[0].stacks[0].frames if members[0].stacks else [], processes=members)
        for members in groups.values()
    ]
    return sorted(found, key=lambda group: len(group.processes))


def function_of(frame: str) -> str:
    """Return a frame without its line number: ranks waiting in the same loop are at different lines.

    >>> function_of("step (trainer/loop.py:31)")
    'step (trainer/loop.py'
    """
    return frame.rpartition(":")[0]


def _process_stacks(row: tuple[Any, ...]) -> ProcessStacks:
    process_id, role, rank, host, aligned_ns, attributes = row
    stacks = read_told(attributes).stacks
    return ProcessStacks(
        process_id=process_id, role=role or "", rank=rank, host=host or "", time_ns=aligned_ns, stacks=stacks
    )
