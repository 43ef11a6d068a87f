"""Until when the open work of a process lasts.

Work that has not ended lasts until now while its process is live. After its process has ended or fallen silent, it
lasts until the last sign of life: nothing is known about later times. If a silent process reports again, its work is in
flight again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import numpy as np

from rl_insight.intake import liveness
from rl_insight.schema.signs_of_life import LAST_SEEN_EVENT, LastSeen
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.summary import time_range
from rl_insight.store.tables import LANE_CLOCK


class ProcessEnd(NamedTuple):
    """Until when the open work of a process lasts."""

    until_ns: int
    is_live: bool
    """Whether its open work is in flight. An imported process is not live."""


class LastReport(NamedTuple):
    """The last report of the process of an export, see `LAST_SEEN_EVENT`."""

    process: int
    time_ns: int
    """Aligned."""
    said: LastSeen


LANE_ENDS: Final = """
    JOIN (SELECT lane_id, until_ns, is_live FROM lanes JOIN process_ends USING (process)) USING (lane_id)
"""
"""The join that adds the fields of `ProcessEnd` to a table of spans, after `register_ends`."""
_PROCESSES = "SELECT process, final, last_seen_ns, heartbeat_s, delay_ns IS NULL FROM processes"
_IDS = "SELECT process, process_id FROM processes"
_LAST_REPORTS = f"""
    SELECT process, max(time_ns + clock_offset_ns), arg_max(coalesce(attributes, ''), time_ns)
    FROM event_data {LANE_CLOCK} WHERE name = $name GROUP BY process
"""  # noqa: S608  (constants)


def process_ends(cursor: Cursor, now_ns: int) -> dict[int, ProcessEnd]:
    """Return until when the open work of each process lasts, as of a time of the server's clock.

    An import does not observe when a process reported. Exports say it; otherwise, the work of an imported process lasts
    until the last record of the run.
    """
    found = {}
    imported = []
    for process, final, last_seen_ns, heartbeat_s, is_imported in cursor.execute(_PROCESSES).fetchall():
        if is_imported:
            imported.append(process)
            continue
        state = liveness(final=final, last_seen_ns=last_seen_ns, heartbeat_s=heartbeat_s, now_ns=now_ns)
        is_live = state == "live"
        found[process] = ProcessEnd(now_ns if is_live else min(now_ns, last_seen_ns), is_live)
    if imported:
        last_ns = time_range(cursor)[1] or 0
        reported = {one.process: one.time_ns for one in last_reports(cursor)}
        found |= {process: ProcessEnd(reported.get(process, last_ns), is_live=False) for process in imported}
    return found


def register_ends(cursor: Cursor, now_ns: int) -> dict[int, ProcessEnd]:
    """Make `process_ends` a table for the statements of a cursor, see `LANE_ENDS`, and return it."""
    found = process_ends(cursor, now_ns)
    table = {
        "process": np.array(list(found), np.int32),
        "until_ns": np.array([one.until_ns for one in found.values()], np.int64),
        "is_live": np.array([one.is_live for one in found.values()], np.bool_),
    }
    cursor.register("process_ends", table)
    return found


def ends_by_id(cursor: Cursor, now_ns: int) -> dict[str, ProcessEnd]:
    """Return `process_ends` by process id."""
    found = process_ends(cursor, now_ns)
    return {process_id: found[process] for process, process_id in cursor.execute(_IDS).fetchall()}


def last_reports(cursor: Cursor) -> list[LastReport]:
    """Return when the processes of an export last reported."""
    rows = cursor.execute(_LAST_REPORTS, {"name": LAST_SEEN_EVENT}).fetchall()
    return [LastReport(process, time_ns, _read_last_seen(text)) for process, time_ns, text in rows]


def _read_last_seen(text: str) -> LastSeen:
    """Return what a process reported; the defaults if it cannot be read."""
    try:
        return msgspec.json.decode(text, type=LastSeen)
    except msgspec.MsgspecError:
        return LastSeen()
