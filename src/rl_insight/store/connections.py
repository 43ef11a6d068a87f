"""Connections to run files: settings that confine SQL to the file, and cursors that cannot write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from rl_insight.store.errors import StoreError, StoreVersionError
from rl_insight.store.file_errors import check_complete, check_descriptors, check_exists, translated
from rl_insight.store.memory import Memory, lend_memory
from rl_insight.store.tables import is_current

_NO_PROGRESS_BAR = "SET enable_progress_bar = false"
"""DuckDB draws one on standard output when a statement takes two seconds; each connection has its own setting."""


def safe_settings(*, memory_limit: str, threads: int) -> dict[str, Any]:
    """Return the settings of every connection to a run file: nothing outside the file can be reached."""
    return {
        "memory_limit": memory_limit,
        "threads": str(threads),
        "async_threads": "1",  # for remote files; the default of 8 would be 250 idle threads in a server of 32 runs
        "allowed_configs": ["max_vacuum_tasks", "enable_progress_bar"],
        "enable_external_access": "false",
        "autoload_known_extensions": "false",
        "autoinstall_known_extensions": "false",
        "allow_community_extensions": "false",
    }


class RunFile:
    """A run file, open for reading only: nothing in it changes, and several processes can read it at once.

    Commits in the write-ahead log of a crashed writer are visible, too.

    Raises:
        RunNotFoundError: there is no such file; none is created.
        StoreBusyError: another process has it open for writing.
        StoreCorruptError: the file is damaged, truncated, or not a run file.
        StoreVersionError: another version wrote it; `run_store.RunStore` upgrades an older file.
    """

    def __init__(self, path: Path, *, memory_limit: str = "512MB", threads: int = 2) -> None:
        self.path = Path(path)
        self._closed = False
        check_exists(self.path)
        self._open(safe_settings(memory_limit=memory_limit, threads=threads), read_only=True)

    def _open(self, settings: dict[str, Any], *, read_only: bool) -> None:
        self._memory = Memory()
        check_descriptors(self.path)
        with translated(self.path, opening=True):
            self._connection = duckdb.connect(str(self.path), read_only=read_only, config=settings)
            try:
                self._lock_settings()
                check_complete(self._connection, self.path)
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def _lock_settings(self) -> None:
        """Keep SQL from reading Python variables and from changing the settings.

        A second connection of this process to the same file shares the settings of the first, which has locked them.
        """
        self._connection.execute(_NO_PROGRESS_BAR)
        ((is_locked,),) = self._connection.execute("SELECT current_setting('lock_configuration')").fetchall()
        if not is_locked:
            self._connection.execute("SET python_enable_replacements = false")
            self._connection.execute("SET lock_configuration = true")

    def _prepare(self) -> None:
        if not is_current(self._connection):
            raise StoreVersionError(f"the run file {self.path} was written by an older version of rl-insight.")

    @contextmanager
    def reader(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Lend a cursor that sees one consistent state and cannot write; use it in one thread.

        Fetch each result to its end before the next `execute`.
        """
        if self._closed:
            raise StoreError(f"{self.path} is closed.")
        with translated(self.path):
            cursor = self._connection.cursor()
            try:
                lend_memory(cursor, self._memory)
                cursor.execute(_NO_PROGRESS_BAR)
                cursor.execute("BEGIN TRANSACTION READ ONLY")
                yield cursor
            finally:
                cursor.close()

    def close(self) -> None:
        """Close the file; idempotent."""
        self._closed = True
        self._connection.close()
