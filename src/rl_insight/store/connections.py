"""Connections to run files: the settings that keep SQL inside the file, and cursors that cannot write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from rl_insight.store.file_errors import translated

_NO_PROGRESS_BAR = "SET enable_progress_bar = false"
"""DuckDB draws one on the standard output when a statement takes two seconds; each connection has its own setting."""


def safe_settings(*, memory_limit: str, threads: int) -> dict[str, str | bool | int | float | list[str]]:
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


def lock_settings(connection: duckdb.DuckDBPyConnection) -> None:
    """Keep SQL from reading Python variables, and from changing the settings.

    A second connection of this process to the same file shares the settings of the first one, which has locked them.
    """
    connection.execute(_NO_PROGRESS_BAR)
    ((is_locked,),) = connection.execute("SELECT current_setting('lock_configuration')").fetchall()
    if not is_locked:
        connection.execute("SET python_enable_replacements = false")
        connection.execute("SET lock_configuration = true")


@contextmanager
def cursor_of(connection: duckdb.DuckDBPyConnection, path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Lend a cursor whose transaction cannot write."""
    with translated(path):
        cursor = connection.cursor()
        try:
            cursor.execute(_NO_PROGRESS_BAR)
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            yield cursor
        finally:
            cursor.close()
