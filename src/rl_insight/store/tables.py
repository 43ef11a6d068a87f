"""The tables of a run file, and the steps that bring an older file up to date.

Wide text that repeats (lanes, span names, metric series) stands once in a table of its own and is referred to by a
number, which keeps group-bys over millions of rows fast. The views `spans`, `open_spans`, `events`, `logs`, `samples`
and `histograms` put the text back and align the times of all processes, for people who open the file themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import duckdb

from rl_insight.store.errors import StoreCorruptError, StoreVersionError

SECOND: Final = 1_000_000_000

LONG_SPAN_NS: Final = 10 * SECOND
"""Spans of at least this length also stand in `long_spans`, so that a narrow view finds those that began before it."""

ROLLUPS: Final[dict[str, int]] = {
    "rollup_1s": SECOND,
    "rollup_10s": 10 * SECOND,
    "rollup_100s": 100 * SECOND,
    "rollup_1000s": 1000 * SECOND,
}
"""Rollup table to bucket width. A rollup sums up, for each lane and depth, the spans shorter than its bucket."""

ROLLUP_ROWS: Final = 250_000
"""Spans are summed up in portions of this many: fewer are cheap to read one by one."""

_SPAN_COLUMNS = """
    span_id UBIGINT, trace_high UBIGINT, trace_low UBIGINT, parent_id UBIGINT,
    lane_id INTEGER, name_id INTEGER, depth SMALLINT, start_ns BIGINT, duration_ns BIGINT,
    segment VARCHAR, status VARCHAR, error VARCHAR, step BIGINT, session_id VARCHAR, attributes VARCHAR
"""

_PLACE_COLUMNS = """
    span_id UBIGINT, trace_high UBIGINT, trace_low UBIGINT, lane_id INTEGER,
    step BIGINT, session_id VARCHAR, attributes VARCHAR
"""
_EVENT_COLUMNS = f"time_ns BIGINT, name VARCHAR, {_PLACE_COLUMNS}"
_LOG_COLUMNS = f"time_ns BIGINT, level BIGINT, logger VARCHAR, message VARCHAR, {_PLACE_COLUMNS}"


def _rollup_table(name: str) -> str:
    return f"""
    CREATE TABLE {name} (
        lane_id INTEGER, depth SMALLINT, start_ns BIGINT, end_ns BIGINT, spans UBIGINT, busy_ns DOUBLE,
        errors UBIGINT, longest_ns BIGINT, longest_id UBIGINT, longest_name_id INTEGER
    )"""


def _span_view(view: str, table: str) -> str:
    return f"""
    CREATE VIEW {view} AS
    SELECT
        printf('%016x', span_id) AS span_id,
        printf('%016x%016x', trace_high, trace_low) AS trace_id,
        CASE WHEN parent_id = 0 THEN NULL ELSE printf('%016x', parent_id) END AS parent_id,
        name, start_ns + clock_offset_ns AS start_ns,
        CASE WHEN duration_ns < 0 THEN NULL ELSE duration_ns END AS duration_ns,
        segment, status, error, step, session_id, attributes,
        process_id, role, rank, host, lane, depth
    FROM {table} JOIN lanes USING (lane_id) JOIN names USING (name_id) JOIN processes USING (process)
    """  # noqa: S608  (names from this module)


_CREATE: Final[tuple[str, ...]] = (
    # Who recorded. `process` is the number used elsewhere; an aligned time is a recorded time plus clock_offset_ns.
    """
    CREATE TABLE processes (
        process INTEGER, process_id VARCHAR, run_id VARCHAR, host VARCHAR, pid BIGINT, project VARCHAR,
        experiment_name VARCHAR, role VARCHAR, rank BIGINT, labels VARCHAR, started_ns BIGINT, heartbeat_s DOUBLE,
        first_seen_ns BIGINT, last_seen_ns BIGINT, last_sent_ns BIGINT, final BOOLEAN,
        clock_offset_ns BIGINT, delay_ns BIGINT, delay_hits INTEGER
    )""",
    # Which batches are in: all up to low_water, and the ranges in `above`, such as "7-9,12-12".
    "CREATE TABLE ledger (process INTEGER, low_water BIGINT, above VARCHAR)",
    "CREATE TABLE losses (process INTEGER, kind VARCHAR, reason VARCHAR, count BIGINT)",
    "CREATE TABLE lanes (lane_id INTEGER, process INTEGER, lane VARCHAR)",
    "CREATE TABLE names (name_id INTEGER, name VARCHAR)",
    f"CREATE TABLE span_data ({_SPAN_COLUMNS})",
    f"CREATE TABLE open_span_data ({_SPAN_COLUMNS})",
    """
    CREATE TABLE long_spans (
        span_id UBIGINT, lane_id INTEGER, name_id INTEGER, depth SMALLINT, start_ns BIGINT, duration_ns BIGINT,
        status VARCHAR
    )""",
    *(_rollup_table(name) for name in ROLLUPS),
    f"CREATE TABLE event_data ({_EVENT_COLUMNS})",
    f"CREATE TABLE log_data ({_LOG_COLUMNS})",
    """
    CREATE TABLE series (
        series_id INTEGER, process INTEGER, name VARCHAR, kind VARCHAR, documentation VARCHAR, labels VARCHAR
    )""",
    "CREATE TABLE sample_data (series_id INTEGER, time_ns BIGINT, value DOUBLE, step BIGINT)",
    """
    CREATE TABLE histogram_data (
        series_id INTEGER, time_ns BIGINT, step BIGINT, count UBIGINT, sum DOUBLE, min DOUBLE, max DOUBLE,
        codes INTEGER[], counts UBIGINT[]
    )""",
    # One row a session; snapshot_ns is the time of the owner's latest word, NULL where only phases are known.
    """
    CREATE TABLE sessions (
        session_id VARCHAR, task_id VARCHAR, process_id VARCHAR, rank BIGINT, role VARCHAR, status VARCHAR,
        reason VARCHAR, step BIGINT, model_version VARCHAR, reward DOUBLE, tokens BIGINT,
        submit_ts DOUBLE, enqueue_ts DOUBLE, wait_return_ts DOUBLE, finalized_ts DOUBLE,
        queue_wait_s DOUBLE, runner_wait_s DOUBLE, execution_s DOUBLE, post_wait_s DOUBLE, total_s DOUBLE,
        generate_s DOUBLE, reward_s DOUBLE, toolcall_s DOUBLE,
        rollout_stats VARCHAR, phase_seconds VARCHAR, phases VARCHAR, counters VARCHAR, snapshot_ns BIGINT
    )""",
    """
    CREATE TABLE findings (
        finding_id VARCHAR, kind VARCHAR, severity VARCHAR, title VARCHAR, start_ns BIGINT, end_ns BIGINT,
        step BIGINT, lanes VARCHAR, evidence VARCHAR, updated_ns BIGINT
    )""",
    _span_view("spans", "span_data"),
    _span_view("open_spans", "open_span_data"),
    """
    CREATE VIEW events AS
    SELECT time_ns + clock_offset_ns AS time_ns, name,
        CASE WHEN span_id = 0 THEN NULL ELSE printf('%016x', span_id) END AS span_id,
        step, session_id, attributes, process_id, role, rank, lane
    FROM event_data JOIN lanes USING (lane_id) JOIN processes USING (process)
    """,
    """
    CREATE VIEW logs AS
    SELECT time_ns + clock_offset_ns AS time_ns, level, logger, message,
        CASE WHEN span_id = 0 THEN NULL ELSE printf('%016x', span_id) END AS span_id,
        step, session_id, attributes, process_id, role, rank, lane
    FROM log_data JOIN lanes USING (lane_id) JOIN processes USING (process)
    """,
    """
    CREATE VIEW samples AS
    SELECT name, kind, series.labels AS labels, time_ns + clock_offset_ns AS time_ns, value, step,
        process_id, role, rank
    FROM sample_data JOIN series USING (series_id) JOIN processes USING (process)
    """,
    """
    CREATE VIEW histograms AS
    SELECT name, series.labels AS labels, time_ns + clock_offset_ns AS time_ns, step, count, sum, min, max,
        codes, counts, process_id, role, rank
    FROM histogram_data JOIN series USING (series_id) JOIN processes USING (process)
    """,
    "INSERT INTO meta VALUES ('rolled_up_rows', '0')",
)

# Phases were the text of a JSON object, by name; a list of them is quicker to write and can be asked in SQL.
# Not ALTER ... USING: after kill -9 the log holds the expression, and functions are not known when it is replayed.
_TYPED_PHASES: Final[tuple[str, ...]] = (
    """
    CREATE TABLE typed_sessions AS SELECT * REPLACE (CAST(list_sort(flatten(list_transform(
        map_entries(from_json(phases, '"MAP(VARCHAR, STRUCT('
            || 'start_ts DOUBLE, end_ts DOUBLE, span_id VARCHAR, outcome VARCHAR, payload JSON)[])"')),
        lambda named: list_transform(named.value, lambda phase: struct_pack(
            start_ts := phase.start_ts, end_ts := phase.end_ts,
            span_id := coalesce(('0x' || phase.span_id)::UBIGINT, 0),
            name := named.key, outcome := phase.outcome, payload := phase.payload::VARCHAR)))))
        AS STRUCT(start_ts DOUBLE, end_ts DOUBLE, span_id UBIGINT, name VARCHAR, outcome VARCHAR, payload VARCHAR)[]
    ) AS phases) FROM sessions
    """,
    "DROP TABLE sessions",
    "ALTER TABLE typed_sessions RENAME TO sessions",
)


def _with_zstd(table: str, columns: str) -> tuple[str, ...]:
    """Return the statements that make a table anew with its long texts compressed by zstd."""
    for text in ("error", "message", "attributes"):
        columns = columns.replace(f"{text} VARCHAR", f"{text} VARCHAR USING COMPRESSION zstd")
    return (
        f"CREATE TABLE dense_{table} ({columns})",
        f"INSERT INTO dense_{table} SELECT * FROM {table}",  # noqa: S608  (names from this module)
        f"DROP TABLE {table}",
        f"ALTER TABLE dense_{table} RENAME TO {table}",
    )


# Left alone, DuckDB picks DICT_FSST for texts of a few kilobytes, which compresses 6 MB/s where zstd does 100 MB/s.
_LONG_TEXTS: Final[tuple[str, ...]] = (
    *_with_zstd("span_data", _SPAN_COLUMNS),
    *_with_zstd("open_span_data", _SPAN_COLUMNS),
    *_with_zstd("event_data", _EVENT_COLUMNS),
    *_with_zstd("log_data", _LOG_COLUMNS),
)
# Nothing wrote findings of the first shape.
_FINDINGS: Final[tuple[str, ...]] = (
    "DROP TABLE findings",
    """
    CREATE TABLE findings (
        finding_id VARCHAR, rule VARCHAR, severity VARCHAR, status VARCHAR, title VARCHAR, explanation VARCHAR,
        remedy VARCHAR, culprit VARCHAR, impact VARCHAR, first_step BIGINT, last_step BIGINT, start_ns BIGINT,
        end_ns BIGINT, lanes VARCHAR, sessions VARCHAR, metrics VARCHAR, evidence VARCHAR, explains VARCHAR,
        updated_ns BIGINT
    )""",
    # When a process was seen to start, fall silent, come back or end; and the totals of its losses as they grew.
    "CREATE TABLE process_states (process INTEGER, time_ns BIGINT, state VARCHAR)",
    "CREATE TABLE loss_history (process INTEGER, time_ns BIGINT, kind VARCHAR, reason VARCHAR, count BIGINT)",
)

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (_CREATE, _TYPED_PHASES, (*_LONG_TEXTS, *_FINDINGS))
"""Step n brings a file from version n to n + 1; a new, empty file has version 0."""


def migrate(connection: duckdb.DuckDBPyConnection, steps: Sequence[Sequence[str]] = MIGRATIONS) -> int:
    """Bring a run file to the newest version, all steps in one transaction; returns the version it had before.

    Raises:
        StoreCorruptError: the file holds tables, but is no run file.
        StoreVersionError: the file is newer than this program.
    """
    tables = {
        name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables() WHERE NOT temporary").fetchall()
    }
    if tables and "meta" not in tables:
        raise StoreCorruptError("not a run file: it is a DuckDB database of something else.")
    found = 0
    if tables:
        rows = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchall()
        found = int(rows[0][0]) if rows else 0
    if found > len(steps):
        raise StoreVersionError(
            f"the run file has store version {found}: this program reads up to {len(steps)}. Use a newer rl-insight."
        )
    if found == len(steps):
        return found
    connection.execute("BEGIN")
    connection.execute("CREATE TABLE IF NOT EXISTS meta (key VARCHAR, value VARCHAR)")
    for step in steps[found:]:
        for statement in step:
            connection.execute(statement)
    connection.execute("DELETE FROM meta WHERE key = 'schema_version'")
    connection.execute("INSERT INTO meta VALUES ('schema_version', $version)", {"version": str(len(steps))})
    connection.execute("COMMIT")
    return found
