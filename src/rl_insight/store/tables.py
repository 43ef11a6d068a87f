"""The tables of a run file, and the steps that upgrade an older file.

The tables of recorded rows are derived from the declarations in `rl_insight.schema.tables`. Wide text that repeats
(lanes, span names, metric series) is stored once and referenced by number, which keeps group-bys over millions of rows
fast. The views `spans`, `open_spans`, `events`, `logs`, `samples` and `histograms` restore the text and align the times
of all processes, for people who open the file themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

import duckdb

from rl_insight.intake.admission import MAX_LOSS_COUNT, MAX_TIME_NS
from rl_insight.schema.signs_of_life import LAST_SEEN_LANE
from rl_insight.schema.tables import Column, Events, Histograms, Logs, Samples, Spans, Table
from rl_insight.sessions.model import COLUMNS as SESSION_COLUMNS
from rl_insight.store.errors import StoreCorruptError, StoreVersionError

SECOND: Final = 1_000_000_000

LONG_SPAN_NS: Final = 10 * SECOND
"""Spans of at least this length are also in `long_spans`, so that a narrow view finds those that started before it."""

ROLLUPS: Final[dict[str, int]] = {
    "rollup_1s": SECOND,
    "rollup_10s": 10 * SECOND,
    "rollup_100s": 100 * SECOND,
    "rollup_1000s": 1000 * SECOND,
}
"""Rollup table to bucket width. A rollup sums the spans shorter than its bucket, by lane and depth."""

ROLLUP_ROWS: Final = 250_000
"""Spans are rolled up in portions of this size: fewer are cheap to read individually."""

LONG_SPAN_COLUMNS: Final = ("span_id", "lane_id", "name_id", "depth", "start_ns", "duration_ns", "status")
_NUMBERED: Final = {"lane": "lane_id", "name": "name_id", "index": "series_id"}
"""Kinds of columns that the store keeps as numbers, and their names in the store."""
PLACE: Final = "JOIN lanes USING (lane_id) JOIN processes USING (process)"
"""Joins that add the lane, the process and its clock offset to a query."""
IS_SHOWN_LANE: Final = f"lane IS DISTINCT FROM '{LAST_SEEN_LANE}'"
"""The condition on `lanes` that leaves out signs of life, which are not events of the run."""
_CLOCKS: Final = "JOIN (SELECT {id}, process, clock_offset_ns FROM {table} JOIN processes USING (process)) USING ({id})"
LANE_CLOCK: Final = _CLOCKS.format(table="lanes", id="lane_id")
"""The join that adds only the clock offset: a recorded time plus `clock_offset_ns` is an aligned time."""
SERIES_CLOCK: Final = _CLOCKS.format(table="series", id="series_id")
TIMES: Final[dict[str, tuple[str, str]]] = {
    "span_data": ("start_ns", LANE_CLOCK),
    "long_spans": ("start_ns", LANE_CLOCK),
    "open_span_data": ("start_ns", LANE_CLOCK),
    "event_data": ("time_ns", LANE_CLOCK),
    "log_data": ("time_ns", LANE_CLOCK),
    "sample_data": ("time_ns", SERIES_CLOCK),
    "histogram_data": ("time_ns", SERIES_CLOCK),
}
"""Tables with times: the column, and the join that aligns it."""


def stored_name(name: str, column: Column) -> str:
    """Return the name of a column in the store."""
    return _NUMBERED.get(column.kind, name)


def _stored(table: type[Table], **others: str) -> dict[str, str]:
    columns = {stored_name(name, column): column.store for name, column in table.COLUMNS.items() if name != "buckets"}
    return columns | others


DATA_TABLES: Final[dict[str, dict[str, str]]] = {
    "span_data": _stored(Spans, depth="SMALLINT"),
    "open_span_data": _stored(Spans, depth="SMALLINT"),
    "event_data": _stored(Events),
    "log_data": _stored(Logs),
    "sample_data": _stored(Samples),
    "histogram_data": _stored(Histograms, codes="INTEGER[]", counts="UBIGINT[]"),
}
"""The tables of recorded rows: column names and types."""


def aligned(table: type[Table]) -> str:
    """Return the SELECT list that reads a table as it was recorded, with text and aligned times."""
    return ", ".join(
        f"{name} + clock_offset_ns AS {name}" if column.kind == "time" else name
        for name, column in table.COLUMNS.items()
    )


def _readable(table: type[Table]) -> str:
    """Return the SELECT list for people: ids in hexadecimal, NULL for absent values."""
    found = []
    for name, column in table.COLUMNS.items():
        if name == "trace_high":
            found.append("printf('%016x%016x', trace_high, trace_low) AS trace_id")
        elif column.kind == "id" and name != "trace_low":
            is_absent = f"{name} = 0" if column.optional else "false"
            found.append(f"CASE WHEN {is_absent} THEN NULL ELSE printf('%016x', {name}) END AS {name}")
        elif column.kind == "time":
            found.append(f"{name} + clock_offset_ns AS {name}")
        elif column.kind == "duration":
            found.append(f"CASE WHEN {name} < 0 THEN NULL ELSE {name} END AS {name}")
        elif column.kind not in {"id", "lane", "index"}:
            found.append(name)
    return ", ".join(found)


def _columns(text: str) -> dict[str, str]:
    """Read columns as SQL lists them: `process INTEGER, role VARCHAR`."""
    return dict(part.split() for part in text.split(","))


_ROLLUP = _columns(
    "lane_id INTEGER, depth SMALLINT, start_ns BIGINT, end_ns BIGINT, spans UBIGINT, busy_ns DOUBLE, errors UBIGINT, "
    "longest_ns BIGINT, longest_id UBIGINT, longest_name_id INTEGER"
)
TABLES: Final[dict[str, dict[str, str]]] = {
    "meta": _columns("key VARCHAR, value VARCHAR"),
    # `process` is the number used elsewhere; an aligned time is a recorded time plus clock_offset_ns.
    "processes": _columns(
        "process INTEGER, process_id VARCHAR, run_id VARCHAR, host VARCHAR, pid BIGINT, project VARCHAR, "
        "experiment_name VARCHAR, role VARCHAR, rank BIGINT, labels VARCHAR, started_ns BIGINT, heartbeat_s DOUBLE, "
        "first_seen_ns BIGINT, last_seen_ns BIGINT, last_sent_ns BIGINT, final BOOLEAN, clock_offset_ns BIGINT, "
        "delay_ns BIGINT, delay_hits INTEGER"
    ),
    # Which batches are in: all up to low_water, and the ranges in `above`, such as "7-9,12-12".
    "ledger": _columns("process INTEGER, low_water BIGINT, above VARCHAR"),
    # Batches taken since `ledger` and the last-seen times in `processes` were last written. A busy server adds rows
    # here with each commit, and updates the other two every second.
    "taken": _columns("process INTEGER, sequence BIGINT, received_ns BIGINT, sent_ns BIGINT"),
    "losses": _columns("process INTEGER, kind VARCHAR, reason VARCHAR, count BIGINT"),
    # When a process started, fell silent, came back or ended; and the history of its loss totals.
    "process_states": _columns("process INTEGER, time_ns BIGINT, state VARCHAR"),
    "loss_history": _columns("process INTEGER, time_ns BIGINT, kind VARCHAR, reason VARCHAR, count BIGINT"),
    "lanes": _columns("lane_id INTEGER, process INTEGER, lane VARCHAR"),
    "names": _columns("name_id INTEGER, name VARCHAR"),
    "series": _columns(
        "series_id INTEGER, process INTEGER, name VARCHAR, kind VARCHAR, documentation VARCHAR, labels VARCHAR"
    ),
    **DATA_TABLES,
    "long_spans": {name: DATA_TABLES["span_data"][name] for name in LONG_SPAN_COLUMNS},
    **dict.fromkeys(ROLLUPS, _ROLLUP),
    # The spans of each step and lane that the rollups cover: one row per portion.
    "step_spans": _columns(
        "step BIGINT, lane_id INTEGER, first_ns BIGINT, last_ns BIGINT, spans UBIGINT, errors UBIGINT"
    ),
    # One row for each session; snapshot_ns is the time of its owner's latest report, NULL where only phases are known.
    "sessions": SESSION_COLUMNS | {"snapshot_ns": "BIGINT"},
    # The fields of `queries.Finding`; objects and lists are JSON.
    "findings": _columns(
        "finding_id VARCHAR, rule VARCHAR, severity VARCHAR, status VARCHAR, title VARCHAR, explanation VARCHAR, "
        "remedy VARCHAR, culprit VARCHAR, impact VARCHAR, first_step BIGINT, last_step BIGINT, start_ns BIGINT, "
        "end_ns BIGINT, lanes VARCHAR, sessions VARCHAR, metrics VARCHAR, evidence VARCHAR, explains VARCHAR, "
        "updated_ns BIGINT"
    ),
    # How far each table has been exported to each target, and the exported sessions with their status.
    "exports": _columns("target VARCHAR, name VARCHAR, position BIGINT"),
    "exported_sessions": _columns("target VARCHAR, session_id VARCHAR, status VARCHAR"),
}
"""All tables of a run file. Missing tables and columns are added when a file is opened."""

_NAMES = "JOIN names USING (name_id)"
_SERIES = "JOIN series USING (series_id) JOIN processes USING (process)"
_SHOWN_PLACE = f"JOIN (FROM lanes WHERE {IS_SHOWN_LANE}) AS lanes USING (lane_id) JOIN processes USING (process)"
_OF_LANE = "process_id, role, rank, host, lane"
_OF_SERIES = "series.labels AS labels, process_id, role, rank"
VIEWS: Final[dict[str, tuple[str, str]]] = {
    "spans": (f"{_readable(Spans)}, {_OF_LANE}, depth", f"span_data {PLACE} {_NAMES}"),
    "open_spans": (f"{_readable(Spans)}, {_OF_LANE}, depth", f"open_span_data {PLACE} {_NAMES}"),
    "events": (f"{_readable(Events)}, {_OF_LANE}", f"event_data {_SHOWN_PLACE}"),
    "logs": (f"{_readable(Logs)}, {_OF_LANE}", f"log_data {PLACE}"),
    "samples": (f"name, kind, {_readable(Samples)}, {_OF_SERIES}", f"sample_data {_SERIES}"),
    "histograms": (f"name, {_readable(Histograms)}, codes, counts, {_OF_SERIES}", f"histogram_data {_SERIES}"),
}
"""Views for people: their columns and sources."""

# Phases were JSON text, by name; a list of structs is faster to write and can be queried in SQL.
# Not ALTER ... USING: after kill -9 the log has the expression, and functions are not available when it is replayed.
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


def _rebuilt(table: str) -> tuple[str, ...]:
    """Return the statements that rebuild a table with the current compression of its columns."""
    return (
        _create(f"dense_{table}", TABLES[table]),
        f"INSERT INTO dense_{table} BY NAME SELECT * FROM {table}",  # noqa: S608  (names from this module)
        f"DROP TABLE {table}",
        f"ALTER TABLE dense_{table} RENAME TO {table}",
    )


def _create(table: str, columns: Mapping[str, str]) -> str:
    return f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in columns.items())})"


_OUT_OF_RANGE: Final = f"NOT BETWEEN {-(2**56)} AND {MAX_TIME_NS - 1}"


def _update(table: str, values: str, where: str) -> str:
    return f"UPDATE {table} SET {values} WHERE {where}"  # noqa: S608  (names from this module)


def _bounded_times(table: str, time: str, clock: str) -> str:
    """Return the statement that sets impossible times to the time when their process was first seen."""
    key, via = ("lane_id", "lanes") if clock is LANE_CLOCK else ("series_id", "series")
    first_seen = f"first_seen_ns FROM {via} JOIN processes USING (process)"
    return _update(table, f"{time} = {first_seen}", f"{via}.{key} = {table}.{key} AND {table}.{time} {_OUT_OF_RANGE}")


# Values that ingest now refuses, and on which queries failed.
_BOUNDED: Final[tuple[str, ...]] = (
    _update("processes", "clock_offset_ns = 0, delay_ns = NULL, delay_hits = 0", f"abs(clock_offset_ns) > {2**61}"),
    _update("processes", "heartbeat_s = 5.0", "NOT coalesce(heartbeat_s BETWEEN 0.0 AND 86400.0, false)"),
    _update("processes", "started_ns = 0", f"started_ns {_OUT_OF_RANGE}"),
    _update("processes", "last_sent_ns = last_seen_ns", f"last_sent_ns {_OUT_OF_RANGE}"),
    _update("losses", f"count = {MAX_LOSS_COUNT}", f"count > {MAX_LOSS_COUNT}"),
    *(_bounded_times(table, *times) for table, times in TIMES.items()),
    *(_update(table, "duration_ns = 0", f"duration_ns >= {5 << 56}") for table in ("span_data", "long_spans")),
    *(
        f"DELETE FROM {table} WHERE start_ns {_OUT_OF_RANGE} OR end_ns {_OUT_OF_RANGE}"  # noqa: S608  (as above)
        for table in ROLLUPS
    ),
)

STEP_SPANS: Final = """
    INSERT INTO step_spans
    SELECT step, lane_id, min(start_ns), max(start_ns + duration_ns), count(*), count(*) FILTER (status = 'error')
    FROM span_data WHERE step IS NOT NULL AND rowid >= {first} AND rowid < {last}
    GROUP BY rowid // {portion}, step, lane_id ORDER BY step
"""
"""Sums rows of `span_data` by step and lane."""
_ROLLED_UP: Final = "(SELECT value::BIGINT FROM meta WHERE key = 'rolled_up_rows')"

UPGRADES: Final[tuple[tuple[str, ...], ...]] = (
    _TYPED_PHASES,
    # Long text columns had no explicit compression. Nothing ever wrote findings with the first schema.
    (
        *_rebuilt("span_data"),
        *_rebuilt("open_span_data"),
        *_rebuilt("event_data"),
        *_rebuilt("log_data"),
        "DROP TABLE findings",
    ),
    _BOUNDED,
    (
        "DROP TABLE IF EXISTS step_spans",
        _create("step_spans", TABLES["step_spans"]),
        STEP_SPANS.format(first=0, last=_ROLLED_UP, portion=ROLLUP_ROWS),
    ),
)
"""Step n upgrades a file from version n + 1 to n + 2; added tables and columns need no step."""


def migrate(connection: duckdb.DuckDBPyConnection, upgrades: Sequence[Sequence[str]] = UPGRADES) -> int:
    """Create the tables of a new run file, or upgrade an older one; return the version it had, 0 if new.

    Raises:
        StoreCorruptError: the file has tables, but is not a run file.
        StoreVersionError: the file is newer than this program.
    """
    tables = _tables(connection)
    found = _version(connection, tables, upgrades)
    missing = _missing(connection, tables)
    steps = upgrades[found - 1 :] if found else ()
    if found and not steps and not missing:
        return found
    connection.execute("BEGIN")
    for statement in chain.from_iterable(steps):
        connection.execute(statement)
    if steps:
        missing = _missing(connection, _tables(connection))
    views = [
        f"CREATE OR REPLACE VIEW {name} AS SELECT {columns} FROM {source}"  # noqa: S608  (constants)
        for name, (columns, source) in VIEWS.items()
    ]
    connection.execute(";".join(missing + views))
    if not found:
        connection.execute("INSERT INTO meta VALUES ('rolled_up_rows', '0')")
    connection.execute("DELETE FROM meta WHERE key = 'schema_version'")
    connection.execute("INSERT INTO meta VALUES ('schema_version', $version)", {"version": str(len(upgrades) + 1)})
    connection.execute("COMMIT")
    return found


def is_current(connection: duckdb.DuckDBPyConnection, upgrades: Sequence[Sequence[str]] = UPGRADES) -> bool:
    """Return whether a run file needs no migration; errors are those of `migrate`."""
    tables = _tables(connection)
    return _version(connection, tables, upgrades) == len(upgrades) + 1 and not _missing(connection, tables)


def _tables(connection: duckdb.DuckDBPyConnection) -> set[str]:
    rows = connection.execute("SELECT table_name FROM duckdb_tables() WHERE NOT temporary").fetchall()
    return {name for (name,) in rows}


def _version(connection: duckdb.DuckDBPyConnection, tables: set[str], upgrades: Sequence[Sequence[str]]) -> int:
    if tables and "meta" not in tables:
        raise StoreCorruptError("not a run file: it is some other DuckDB database.")
    if not tables:
        return 0
    rows = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchall()
    found, newest = int(rows[0][0]) if rows else 0, len(upgrades) + 1
    if found > newest:
        raise StoreVersionError(
            f"the run file has store version {found}: this program reads up to {newest}. Use a newer rl-insight."
        )
    return found


def _missing(connection: duckdb.DuckDBPyConnection, tables: set[str]) -> list[str]:
    """Return the statements that add missing tables and columns."""
    if not tables:  # a new file: listing its columns would take a fifth of the time to create it
        return [_create(table, columns) for table, columns in TABLES.items()]
    known: dict[str, set[str]] = {}
    for table, column in connection.execute("SELECT table_name, column_name FROM duckdb_columns()").fetchall():
        known.setdefault(table, set()).add(column)
    found = []
    for table, columns in TABLES.items():
        if table not in known:
            found.append(_create(table, columns))
            continue
        lacking = {name: kind for name, kind in columns.items() if name not in known[table]}
        found += [f"ALTER TABLE {table} ADD COLUMN {name} {kind}" for name, kind in lacking.items()]
    return found
