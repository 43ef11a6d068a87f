"""DuckDB's errors about a run file, translated into the store's errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from rl_insight.store.errors import (
    RunNotFoundError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StorePageError,
)

_SPARE_DESCRIPTORS = 8
_FILE_HEADER_BYTES = 3 * 4096
_TOO_MANY_FILES = (
    "cannot open {path}: this process has too many files and connections open. "
    "Raise the limit of open files (ulimit -n), or close connections."
)
_DAMAGED_PAGE = "Corrupt database file: computed checksum"
_DAMAGED = ("orrupt", "hecksum", "not a valid DuckDB", "not enough bytes", "read enough bytes", "eserializ")


def check_exists(path: Path) -> None:
    """Refuse a missing file: DuckDB would create an empty one.

    Raises:
        RunNotFoundError: there is no such file.
    """
    if not path.is_file():
        raise RunNotFoundError(f"there is no run file {path}. Check the path; none was created.")


def check_complete(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Refuse an open file that is shorter than its header says.

    Raises:
        StoreCorruptError: it was truncated.
    """
    ((blocks, size),) = connection.execute("SELECT used_blocks, block_size FROM pragma_database_size()").fetchall()
    if path.stat().st_size < blocks * size + _FILE_HEADER_BYTES:
        raise StoreCorruptError(f"cannot open {path}: the file is truncated, for example by an incomplete copy.")


def check_descriptors(path: Path) -> None:
    """Refuse to open a file when the process is out of file descriptors: DuckDB would abort the process.

    Raises:
        StoreBusyError: too few are left.
    """
    held: list[int] = []
    try:
        for _ in range(_SPARE_DESCRIPTORS):
            held.append(os.open(os.devnull, os.O_RDONLY))  # noqa: PERF401 -- those opened so far have to be closed
    except OSError as error:
        raise StoreBusyError(_TOO_MANY_FILES.format(path=path)) from error
    finally:
        for descriptor in held:
            os.close(descriptor)


@contextmanager
def translated(path: Path, *, opening: bool = False) -> Iterator[None]:
    """Translate DuckDB's errors about the file into the store's errors."""
    try:
        yield
    except duckdb.Error as error:
        raise translate(error, path, opening=opening) from error


def translate(error: duckdb.Error, path: Path, *, opening: bool = False) -> Exception:
    """Return the store's error for one of DuckDB's; errors that are not about the file are unchanged.

    A file that cannot be opened for any other reason counts as damaged.
    """
    text = str(error)
    if "No space left" in text or "File too large" in text or "Disk quota" in text:
        return StoreFullError(f"cannot write to {path}: the disk is full. Free some space; writing resumes then.")
    if "lock on file" in text:
        return StoreBusyError(f"cannot open {path}: another process has it open. Stop that process first.")
    if "different configuration" in text:
        return StoreBusyError(f"cannot open {path}: this process has it open for reading. Close it first.")
    if "Too many open files" in text:
        return StoreBusyError(_TOO_MANY_FILES.format(path=path))
    if "Permission denied" in text or "Read-only file system" in text:
        return StoreError(f"cannot open {path}: permission denied. Check the owner of the data directory.")
    if isinstance(error, duckdb.OutOfMemoryException):
        return StoreError(f"cannot use {path}: the memory limit is too low ({text.splitlines()[0]}).")
    if not opening and _DAMAGED_PAGE in text:
        return StorePageError(
            f"cannot read {path}: some pages are damaged ({text.splitlines()[0]}). Other views of the run "
            "still work. Restore the file from a copy, and check the disk."
        )
    about_file = isinstance(error, (duckdb.IOException, duckdb.SerializationException, duckdb.FatalException))
    if opening or (about_file and any(sign in text for sign in _DAMAGED)):
        return StoreCorruptError(f"cannot read {path}: the file is damaged or not a run file ({text.splitlines()[0]}).")
    if about_file:
        return StoreError(f"cannot use {path}: {text.splitlines()[0]}")
    return error
