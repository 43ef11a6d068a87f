"""Sums of short spans, so that a wide view does not read every span.

Rows of `span_data` are never deleted, so `rowid` counts them. `rolled_up_rows` in `meta` says how many are summed up;
the rest, at most `ROLLUP_ROWS` and one commit, are read one by one. Both change in the same transaction.
"""

from __future__ import annotations

import duckdb

from rl_insight.store.tables import ROLLUP_ROWS, ROLLUPS

_SUM_UP = """
    INSERT INTO {table}
    SELECT
        lane_id, depth, min(start_ns), max(start_ns + duration_ns), count(*), sum(duration_ns)::DOUBLE,
        count(*) FILTER (status = 'error'), max(duration_ns), arg_max(span_id, duration_ns),
        arg_max(name_id, duration_ns)
    FROM span_data
    WHERE rowid >= $first AND rowid < $last AND duration_ns < {width}
    GROUP BY start_ns // {width}, lane_id, depth
    ORDER BY start_ns // {width}
"""


def rolled_up_rows(connection: duckdb.DuckDBPyConnection) -> int:
    """Return how many rows of `span_data` the rollups cover."""
    rows = connection.execute("SELECT value FROM meta WHERE key = 'rolled_up_rows'").fetchall()
    return int(rows[0][0])


def roll_up(connection: duckdb.DuckDBPyConnection, first: int, last: int) -> int:
    """Sum up whole portions of the rows `first` to `last` in the caller's transaction; returns the new end."""
    end = first + (last - first) // ROLLUP_ROWS * ROLLUP_ROWS
    if end == first:
        return first
    for table, width in ROLLUPS.items():
        connection.execute(_SUM_UP.format(table=table, width=width), {"first": first, "last": end})
    connection.execute("UPDATE meta SET value = $rows WHERE key = 'rolled_up_rows'", {"rows": str(end)})
    return end
