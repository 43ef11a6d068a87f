"""CSV and Parquet: one file per table, written by DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import duckdb

from rl_insight.exchange.exporting.rows import OF_METRICS, Selection, selected
from rl_insight.exchange.exporting.writers.output import output_directory
from rl_insight.store.arrow import schema_of_stream
from rl_insight.store.queries import Cursor
from rl_insight.store.queries.base import Parameters
from rl_insight.store.tables import VIEWS

_PHASES = """
    * REPLACE (to_json(list_transform(phases, lambda phase: struct_pack(
        name := phase.name, start_ts := phase.start_ts, end_ts := phase.end_ts, outcome := phase.outcome,
        payload := phase.payload, span_id := printf('%016x', phase.span_id))))::VARCHAR AS phases)
"""
_BUCKETS = "* EXCLUDE (codes, counts), to_json(codes)::VARCHAR AS codes, to_json(counts)::VARCHAR AS counts"
_QUERIES: Final = {
    "spans": ("*", "start_ns"),
    "events": ("*", "time_ns"),
    "logs": ("*", "time_ns"),
    "sessions": (_PHASES, "submit_ts, session_id"),
    "samples": ("*", "time_ns"),
    "histograms": (_BUCKETS, "time_ns"),
}
"""The columns written for each table, and the order of its rows."""
_PROCESSES = """
    SELECT process_id, run_id, project, experiment_name, role, rank, host, pid, labels, started_ns, clock_offset_ns
    FROM processes ORDER BY role, rank NULLS LAST, process_id
"""

TABLES = (*_QUERIES, "processes")
"""The tables that are written, in order."""


def write_csv(cursor: Cursor, path: Path, selection: Selection) -> int:
    """Write a directory of CSV files; return how many rows."""
    return _write(cursor, path, selection, "csv", "FORMAT csv, HEADER")


def write_parquet(cursor: Cursor, path: Path, selection: Selection) -> int:
    """Write a directory of Parquet files; return how many rows."""
    return _write(cursor, path, selection, "parquet", "FORMAT parquet")


class QueryResult:
    """The rows of a query for another connection, which reads the types several times but runs the query once."""

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
    # Connections to run files cannot access other files, so a separate one does the writing.
    with output_directory(path) as directory, duckdb.connect() as writer:
        for name in TABLES:
            if name in OF_METRICS and not selection.has_metrics:
                continue
            writer.register("result", QueryResult(cursor, *_query(name, selection)))
            target = str(directory / f"{name}.{suffix}").replace("'", "''")
            (rows,) = writer.execute(f"COPY result TO '{target}' ({options})").fetchone() or (0,)
            written += rows
    return written


def _query(name: str, selection: Selection) -> tuple[str, Parameters]:
    if name not in _QUERIES:
        return _PROCESSES, {}
    written, order = _QUERIES[name]
    sql, given = selected(name, VIEWS[name][0] if name in VIEWS else "*", selection)
    return f"SELECT {written} FROM ({sql}) ORDER BY {order}", given  # noqa: S608  (constants)
