"""How frames get into the tables of a run file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb

from rl_insight.store.frame import Frame, FrameStream, column_of


class arriving:  # noqa: N801  (used as a statement: `with arriving(...)`)
    """Make frames with the same columns visible to SQL as the table `arriving` for one block."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, frames: Sequence[Frame]) -> None:
        self._connection = connection
        self._frames = frames

    def __enter__(self) -> None:
        self._connection.register("arriving", FrameStream(self._frames))

    def __exit__(self, *_: object) -> None:
        self._connection.unregister("arriving")


class TableInserts:
    """Inserts frames into tables of one connection, whose frames are of the same type most of the time.

    A stream stays registered for each table, as `arriving_<table>`, and gets other frames to read: registering it for
    each insert takes as long as the insert of a small commit. The statement is prepared, which takes a third off that.
    What a transaction registered is gone with it when it fails: then this object has to be replaced.
    """

    def __init__(self) -> None:
        self._streams: dict[str, FrameStream] = {}

    @contextmanager
    def inserted(self, connection: duckdb.DuckDBPyConnection, table: str, frames: Sequence[Frame]) -> Iterator[None]:
        """Insert frames, by the names of their columns; they can be read again in the block."""
        stream = self._streams.get(table)
        if stream is None or stream.type != frames[0].type:
            stream = self._streams[table] = FrameStream(frames)
            connection.register(f"arriving_{table}", stream)
            connection.execute(f"PREPARE insert_{table} AS INSERT INTO {table} BY NAME SELECT * FROM arriving_{table}")  # noqa: S608  (a constant)
        stream.frames = frames
        try:
            connection.execute(f"EXECUTE insert_{table}")
            yield
        finally:
            stream.frames = ()

    def insert(self, connection: duckdb.DuckDBPyConnection, table: str, frames: Sequence[Frame]) -> None:
        """Insert frames, by the names of their columns."""
        with self.inserted(connection, table, frames):
            pass


def frame_of_rows(types: dict[str, type[Any]], rows: Sequence[tuple[object, ...]]) -> Frame:
    """Return row tuples as a frame."""
    columns: Iterable[Sequence[object]] = zip(*rows, strict=True) if rows else ((),) * len(types)
    return Frame({name: column_of(column, kind) for (name, kind), column in zip(types.items(), columns, strict=True)})


def insert(
    connection: duckdb.DuckDBPyConnection, name: str, types: dict[str, type[Any]], rows: Sequence[tuple[object, ...]]
) -> None:
    """Insert row tuples into a table of this package by position; for few rows."""
    if rows:
        with arriving(connection, [frame_of_rows(types, rows)]):
            connection.execute(f"INSERT INTO {name} SELECT * FROM arriving")  # noqa: S608  (a constant)
