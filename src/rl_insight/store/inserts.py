"""Inserting frames into the tables of a run file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import duckdb
import numpy as np

from rl_insight.store.frame import Frame, FrameStream, column_of

NUMPY_TYPES: Final[dict[str, type[Any]]] = {
    "VARCHAR": str,
    "BIGINT": np.int64,
    "UBIGINT": np.uint64,
    "INTEGER": np.int32,
    "DOUBLE": np.float64,
    "BOOLEAN": np.bool_,
}
"""SQL column types, and the types of their values in memory."""


@contextmanager
def arriving(connection: duckdb.DuckDBPyConnection, frames: Sequence[Frame]) -> Iterator[None]:
    """Make frames with the same columns visible to SQL as the table `arriving` for one block."""
    connection.register("arriving", FrameStream(frames))
    try:
        yield
    finally:
        connection.unregister("arriving")


class TableInserts:
    """Inserts frames into the tables of one connection; the frames of a table mostly have the same type.

    A stream stays registered for each table, as `arriving_<table>`, and is given new frames: registering it for each
    insert takes as long as the insert of a small commit. The statement is prepared, which saves a third of that.
    When a transaction fails, its registrations are lost and this object has to be replaced.
    """

    def __init__(self) -> None:
        self._streams: dict[str, FrameStream] = {}

    def insert(
        self, connection: duckdb.DuckDBPyConnection, table: str, frames: Sequence[Frame], then: str | None = None
    ) -> None:
        """Insert frames by column name; the statement `then` can read them again."""
        stream = self._streams.get(table)
        if stream is None or stream.type != frames[0].type:
            stream = self._streams[table] = FrameStream(frames)
            connection.register(f"arriving_{table}", stream)
            connection.execute(f"PREPARE insert_{table} AS INSERT INTO {table} BY NAME SELECT * FROM arriving_{table}")  # noqa: S608  (a constant)
        stream.frames = frames
        try:
            connection.execute(f"EXECUTE insert_{table}")
            if then is not None:
                connection.execute(then)
        finally:
            stream.frames = ()


def frame_of_rows(types: Mapping[str, str], rows: Sequence[tuple[object, ...]]) -> Frame:
    """Return row tuples as a frame; `types` are SQL types."""
    columns: Iterable[Sequence[object]] = zip(*rows, strict=True) if rows else ((),) * len(types)
    found = zip(types.items(), columns, strict=True)
    return Frame({name: column_of(column, NUMPY_TYPES[kind]) for (name, kind), column in found})
