"""A run file opened for reading alone: nothing in it changes, and several processes can read it at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from rl_insight.store.connections import cursor_of, lock_settings, safe_settings
from rl_insight.store.errors import StoreVersionError
from rl_insight.store.file_errors import check_descriptors, check_exists, check_whole, translated
from rl_insight.store.run_store import RunStore
from rl_insight.store.tables import is_current


class ReadOnlyRun:
    """A run file for questions; uncommitted changes of a crashed writer's log are seen, too.

    Raises:
        RunNotFoundError: there is no such file; none is made.
        StoreBusyError: another process has it open for writing.
        StoreCorruptError: the file is damaged, cut short, or not a run file.
        StoreVersionError: another version wrote it; a `RunStore` brings an older file up to date.
    """

    def __init__(self, path: Path, *, memory_limit: str = "512MB", threads: int = 2) -> None:
        self.path = Path(path)
        check_exists(self.path)
        check_descriptors(self.path)
        with translated(self.path, opening=True):
            self._connection = duckdb.connect(
                str(self.path), read_only=True, config=safe_settings(memory_limit=memory_limit, threads=threads)
            )
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> None:
        lock_settings(self._connection)
        check_whole(self._connection, self.path)
        if not is_current(self._connection):
            raise StoreVersionError(f"the run file {self.path} was written by an older version of rl-insight.")

    @contextmanager
    def reader(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Lend a cursor that sees one consistent state; use it in one thread."""
        with cursor_of(self._connection, self.path) as cursor:
            yield cursor

    def close(self) -> None:
        """Close the file; idempotent."""
        self._connection.close()


def open_run_file(path: Path) -> ReadOnlyRun | RunStore:
    """Open a run file for reading only; one of an older version is brought up to date first.

    Raises:
        RunNotFoundError: there is no such file.
        StoreError: it cannot be opened; the message says why.
    """
    try:
        return ReadOnlyRun(path)
    except StoreVersionError:
        return RunStore(path)  # says itself when the file is of a newer version
