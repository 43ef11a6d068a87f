"""The tables of a warehouse export, in order, and the position of an export in each.

Rows of the recorded tables are never deleted, so a range of row ids always means the same rows. A session is exported
when it has ended, and again if its status changes afterwards; each version of a finding is exported.

The position is kept in the run file. A file is named after the position of its first row, and the position advances
after the file was written: an export that is interrupted in between is repeated under the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rl_insight.store.tables import VIEWS

MAX_ROWS: Final = 100_000
"""Rows per file, which bounds memory."""


class RowRange(NamedTuple):
    """The rows to export next."""

    sql: str
    """Has a column `hour`, in UTC."""
    given: dict[str, Any]
    position: int
    """The position after the rows are written."""
    statuses: Sequence[str] = ()
    """Of sessions: their statuses, in the order of `given["ids"]`."""


class RowTable(NamedTuple):
    """A table of recorded rows, and its column of times."""

    view: str
    time: str

    def next(self, cursor: Any, position: int) -> RowRange | None:
        """Return the rows after a position; None when there are none."""
        columns, source = VIEWS[self.view]
        table = source.partition(" ")[0]
        ((count,),) = cursor.execute(f"SELECT count(*) FROM {table}").fetchall()  # noqa: S608  (constants)
        if count <= position:
            return None
        until = min(count, position + MAX_ROWS)
        rows = f"SELECT {columns} FROM {source} WHERE {table}.rowid >= $first AND {table}.rowid < $last"  # noqa: S608  (constants)
        sql = f"SELECT *, {_hour(self.time)} AS hour FROM ({rows})"  # noqa: S608  (constants)
        return RowRange(sql, {"first": position, "last": until}, until)


class SessionTable(NamedTuple):
    """The sessions that have ended; all at once, so that an export that is repeated covers the same hours."""

    target: str

    def next(self, cursor: Any, position: int) -> RowRange | None:
        """Return the sessions that ended since; the position counts those that were exported."""
        ended = cursor.execute(_ENDED, {"target": self.target}).fetchall()
        if not ended:
            return None
        ids, statuses = map(list, zip(*ended, strict=True))
        sql = """
            SELECT * REPLACE (to_json(phases)::VARCHAR AS phases),
                strftime(make_timestamp((coalesce(submit_ts, finalized_ts, 0) * 1e6)::BIGINT), '%Y-%m-%dT%H') AS hour
            FROM sessions WHERE session_id IN (SELECT unnest($ids))
        """
        return RowRange(sql, {"ids": ids}, position + len(ids), statuses)


class FindingTable(NamedTuple):
    """The versions of findings; the position is the time of the last one."""

    def next(self, cursor: Any, position: int) -> RowRange | None:
        """Return the findings that were written after a position."""
        ((last,),) = cursor.execute(
            "SELECT max(updated_ns) FROM findings WHERE updated_ns > $position", {"position": position}
        ).fetchall()
        if last is None:
            return None
        sql = f"SELECT *, {_hour('updated_ns')} AS hour FROM findings WHERE updated_ns > $first AND updated_ns <= $last"  # noqa: S608  (constants)
        return RowRange(sql, {"first": position, "last": last}, last)


_ENDED: Final = """
    SELECT session_id, status FROM sessions
    ANTI JOIN (SELECT * FROM exported_sessions WHERE target = $target) AS known USING (session_id, status)
    WHERE status <> 'pending'
"""
NOTE_SESSIONS: Final = "INSERT INTO exported_sessions SELECT $target, unnest($ids), unnest($statuses)"


def _hour(column: str) -> str:
    return f"strftime(make_timestamp({column} // 1000), '%Y-%m-%dT%H')"


def tables_of(target: str) -> dict[str, RowTable | SessionTable | FindingTable]:
    """Return the tables that are exported to a target, by name."""
    return {
        "spans": RowTable("spans", "start_ns"),
        **{view: RowTable(view, "time_ns") for view in ("events", "logs", "samples", "histograms")},
        "sessions": SessionTable(target),
        "findings": FindingTable(),
    }
