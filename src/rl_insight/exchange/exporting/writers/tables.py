"""CSV and Parquet: a file for each table, written by DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from rl_insight.exchange.exporting.rows import Selection
from rl_insight.exchange.exporting.writers.output import output_directory
from rl_insight.store.arrow import schema_of_stream
from rl_insight.store.queries import Cursor
from rl_insight.store.queries.base import conditions

_LANE = "(lane = $lane OR (lane IS NULL AND (process_id = $lane OR role = $lane)))"
_SPAN_CONDITIONS = {
    "from_ns": "(duration_ns IS NULL OR start_ns + duration_ns >= $from_ns)",
    "until_ns": "start_ns < $until_ns",
    "step": "step = $step",
    "session_id": "session_id = $session_id",
    "lane": _LANE,
}
_INSTANT_CONDITIONS = _SPAN_CONDITIONS | {"from_ns": "time_ns >= $from_ns", "until_ns": "time_ns < $until_ns"}
_SESSION_CONDITIONS = {
    "from_ns": "(coalesce(finalized_ts, wait_return_ts) IS NULL OR coalesce(finalized_ts, wait_return_ts) * 1e9 >= "
    "$from_ns)",
    "until_ns": "(submit_ts IS NULL OR submit_ts * 1e9 < $until_ns)",
    "step": "step = $step",
    "session_id": "session_id = $session_id",
    "lane": "$lane IS NULL",  # a session is on no lane; DuckDB refuses values that a query does not use
}
_PROCESSES = """
    SELECT process_id, run_id, project, experiment_name, role, rank, host, pid, labels, started_ns, clock_offset_ns
    FROM processes ORDER BY role, rank NULLS LAST, process_id
"""
_QUERIES: dict[str, tuple[str, dict[str, str]]] = {
    "spans": (
        "SELECT * FROM (SELECT * FROM spans UNION ALL SELECT * FROM open_spans) WHERE {where} ORDER BY start_ns",
        _SPAN_CONDITIONS,
    ),
    "events": ("SELECT * FROM events WHERE {where} ORDER BY time_ns", _INSTANT_CONDITIONS),
    "logs": ("SELECT * FROM logs WHERE {where} ORDER BY time_ns", _INSTANT_CONDITIONS),
    "sessions": (
        """
        SELECT * REPLACE (to_json(list_transform(phases, lambda phase: struct_pack(
            name := phase.name, start_ts := phase.start_ts, end_ts := phase.end_ts, outcome := phase.outcome,
            payload := phase.payload, span_id := printf('%016x', phase.span_id))))::VARCHAR AS phases)
        FROM sessions WHERE {where} ORDER BY submit_ts, session_id
        """,
        _SESSION_CONDITIONS,
    ),
    "samples": ("SELECT * FROM samples WHERE {where} ORDER BY time_ns", _INSTANT_CONDITIONS),
    "histograms": (
        """
        SELECT * EXCLUDE (codes, counts), to_json(codes)::VARCHAR AS codes, to_json(counts)::VARCHAR AS counts
        FROM histograms WHERE {where} ORDER BY time_ns
        """,
        _INSTANT_CONDITIONS,
    ),
    "processes": (_PROCESSES, {}),
}
_OF_METRICS = frozenset({"samples", "histograms"})

TABLES = tuple(_QUERIES)
"""The tables that are written."""


def write_csv(cursor: Cursor, path: Path, selection: Selection) -> int:
    """Write a directory of CSV files; returns how many rows."""
    return _write(cursor, path, selection, "csv", "FORMAT csv, HEADER")


def write_parquet(cursor: Cursor, path: Path, selection: Selection) -> int:
    """Write a directory of Parquet files; returns how many rows."""
    return _write(cursor, path, selection, "parquet", "FORMAT parquet")


class QueryResult:
    """The rows of a query for another connection, which asks for their types several times but runs the query once."""

    def __init__(self, cursor: Cursor, sql: str, given: dict[str, Any]) -> None:
        self._rows = cursor.sql(sql, params=given)
        self._no_rows = cursor.sql(f"FROM ({sql}) LIMIT 0", params=given)

    def __arrow_c_schema__(self) -> object:
        """Return a capsule of the types, see Arrow's PyCapsule interface."""
        return schema_of_stream(self._no_rows.__arrow_c_stream__())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a capsule of the rows, see Arrow's PyCapsule interface."""
        return self._rows.__arrow_c_stream__(requested_schema)


def _write(cursor: Cursor, path: Path, selection: Selection, suffix: str, options: str) -> int:
    written = 0
    # Connections to run files cannot reach other files: one to nothing does the writing.
    with output_directory(path) as directory, duckdb.connect() as writer:
        for name, (sql, fragments) in _QUERIES.items():
            if name in _OF_METRICS and not selection.has_metrics:
                continue
            where, given = conditions(fragments, selection.given if fragments else {})
            writer.register("result", QueryResult(cursor, sql.format(where=where), given))
            target = str(directory / f"{name}.{suffix}").replace("'", "''")
            (rows,) = writer.execute(f"COPY result TO '{target}' ({options})").fetchone() or (0,)
            written += rows
    return written
