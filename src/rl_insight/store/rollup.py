"""Sums of spans by time and step, so that a wide view does not read every span.

Rows of `span_data` are never deleted, so `rowid` counts them. `rolled_up_rows` in `meta` is how many are rolled up; the
rest, at most `ROLLUP_ROWS` plus one commit, are read individually. Both change in the same transaction.
"""

from __future__ import annotations

import duckdb

from rl_insight.store.tables import ROLLUP_ROWS, ROLLUPS, STEP_SPANS

# A bucket includes its finer buckets, and the spans that were too long for those.
_SUM_UP = """
    INSERT INTO {table}
    SELECT
        lane_id, depth, min(start_ns), max(end_ns), sum(spans), sum(busy_ns), sum(errors), max(longest_ns),
        arg_max(longest_id, longest_ns), arg_max(longest_name_id, longest_ns)
    FROM ({parts})
    GROUP BY start_ns // {width}, lane_id, depth
    ORDER BY start_ns // {width}
"""
_SPANS = """
    SELECT
        lane_id, depth, start_ns, start_ns + duration_ns AS end_ns, 1 AS spans, duration_ns::DOUBLE AS busy_ns,
        (status = 'error')::UBIGINT AS errors, duration_ns AS longest_ns, span_id AS longest_id,
        name_id AS longest_name_id
    FROM span_data
    WHERE rowid >= {first} AND rowid < {last} AND duration_ns >= {shortest} AND duration_ns < {width}
"""
_COUNT = "SELECT count(*) FROM {table}"
# Rows that this transaction has just written have row ids too, larger than all others.
_FINER = "UNION ALL SELECT * FROM {finer} WHERE rowid >= {known}"


def rolled_up_rows(connection: duckdb.DuckDBPyConnection) -> int:
    """Return how many rows of `span_data` the rollups cover."""
    rows = connection.execute("SELECT value FROM meta WHERE key = 'rolled_up_rows'").fetchall()
    return int(rows[0][0])


def roll_up(connection: duckdb.DuckDBPyConnection, first: int, last: int) -> int:
    """Roll up full portions of the rows `first` to `last` in the caller's transaction; return the new end."""
    end = first + (last - first) // ROLLUP_ROWS * ROLLUP_ROWS
    if end == first:
        return first
    finer, shortest = "", 0
    for table, width in ROLLUPS.items():
        parts = _SPANS.format(first=first, last=end, shortest=shortest, width=width) + finer
        ((known,),) = connection.execute(_COUNT.format(table=table)).fetchall()
        connection.execute(_SUM_UP.format(table=table, parts=parts, width=width))
        finer, shortest = _FINER.format(finer=table, known=known), width
    connection.execute(STEP_SPANS.format(first=first, last=end, portion=ROLLUP_ROWS))
    connection.execute("UPDATE meta SET value = $rows WHERE key = 'rolled_up_rows'", {"rows": str(end)})
    return end
