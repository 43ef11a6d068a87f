"""Exports one run: writes the new rows of each table, partitioned by run and hour."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb

from rl_insight.exchange.exporting.writers.tables import QueryResult
from rl_insight.exchange.warehouse.files import ParquetFolder
from rl_insight.exchange.warehouse.tables import NOTE_SESSIONS, RowRange, tables_of
from rl_insight.store.run_store import RunStore

_READ_POSITIONS = "SELECT name, position FROM exports WHERE target = $target"
_FORGET_POSITION = "DELETE FROM exports WHERE target = $target AND name = $name"
_NOTE_POSITION = "INSERT INTO exports VALUES ($target, $name, $position)"
_PARQUET = "FORMAT parquet, COMPRESSION zstd"


def export_run(store: RunStore, run_id: str, target: ParquetFolder) -> dict[str, int]:
    """Write everything in a run that the target does not have; return the number of rows per table.

    Raises:
        OSError: the target cannot be written; the next export repeats the last files, under the same names.
    """
    written: dict[str, int] = {}
    for name, table in tables_of(target.url).items():
        while True:
            with store.reader() as cursor:
                positions = dict(cursor.execute(_READ_POSITIONS, {"target": target.url}).fetchall())
                begin = positions.get(name, 0)
                portion = table.next(cursor, begin)
                if portion is None:
                    break
                rows = _write(cursor, portion, target, f"{name}/run={quote(run_id, safe='')}", begin)
            _note(store, target, name, portion)
            written[name] = written.get(name, 0) + rows
    return written


def _write(cursor: Any, portion: RowRange, target: ParquetFolder, folder: str, begin: int) -> int:
    """Write the rows as one file per hour."""
    with (
        tempfile.TemporaryDirectory() as place,
        duckdb.connect(config={"memory_limit": "512MB", "threads": "1", "temp_directory": place}) as writer,
    ):
        writer.register("result", QueryResult(cursor, portion.sql, portion.given))
        writer.execute("CREATE TABLE portion AS FROM result")
        counts = writer.execute("SELECT hour, count(*) FROM portion GROUP BY hour ORDER BY hour").fetchall()
        path = Path(place) / "part.parquet"
        escaped = str(path).replace("'", "''")
        for hour, _ in counts:
            # The hour comes from `strftime`, so it needs no escaping.
            writer.execute(f"COPY (FROM portion WHERE hour = '{hour}') TO '{escaped}' ({_PARQUET})")
            target.put(path, f"{folder}/hour={hour}/part-{begin:020d}.parquet")
    return sum(rows for _, rows in counts)


def _note(store: RunStore, target: ParquetFolder, name: str, portion: RowRange) -> None:
    """Store the position, and which sessions were written."""
    with store.writing() as connection:
        given = {"target": target.url, "name": name}
        if name == "sessions":
            connection.execute(
                NOTE_SESSIONS, portion.given | {"target": target.url, "statuses": list(portion.statuses)}
            )
        connection.execute(_FORGET_POSITION, given)
        connection.execute(_NOTE_POSITION, given | {"position": portion.position})
