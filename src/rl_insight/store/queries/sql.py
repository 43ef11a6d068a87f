"""SQL from users: one SELECT in a separate process, with limits on time, memory and result size.

A query cannot affect the server: its process opens a copy of the run file, has no environment variables and no file or
network access, and is killed at the time limit.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec

from rl_insight.store.connections import RunFile, safe_settings
from rl_insight.store.errors import QueryError, QueryTimeoutError, StoreBusyError
from rl_insight.store.run_files import measure
from rl_insight.store.run_store import RunStore
from rl_insight.words import size_text

MAX_TEXT = 100_000
_COPIES = "sql-copies"
_WORKER = Path(__file__).with_name("sql_worker.py")
_free = threading.Lock()
"""Held by the running query: only one at a time, which bounds memory."""


class SqlResult(msgspec.Struct, frozen=True):
    """The rows of a query."""

    columns: list[str]
    types: list[str]
    rows: list[list[Any]]
    truncated: bool
    """Whether rows are missing because of the limits."""


class SqlLimits(msgspec.Struct, frozen=True):
    """The limits of one query."""

    timeout_s: float = 10.0
    """From the start of its process to the last byte of its result; excludes making the copy."""
    max_rows: int = 10_000
    max_answer_bytes: int = 16 * 1024**2
    """The length of the rows as JSON."""
    memory_bytes: int = 1024**3
    """The address space of its process."""
    max_run_bytes: int = 2 * 1024**3
    """The largest run file that is copied for it; commits to the run wait while it copies, about a second per GB."""


def run_sql(file: RunFile, sql: str, limits: SqlLimits | None = None) -> bytes:
    """Run one SELECT on a run; return a `SqlResult` as JSON.

    A file that this process has open for writing is copied for it.

    Raises:
        QueryError: it is not one SELECT, DuckDB refuses it, or it exceeds a limit; the message says why.
        QueryTimeoutError: it took too long.
        StoreBusyError: another query is running.
        StoreFullError: there is no room for the copy.
    """
    limits = limits or SqlLimits()
    if not isinstance(file, RunStore):
        with tempfile.TemporaryDirectory() as directory:
            return _run(file.path.absolute(), sql, limits, Path(directory), read_only=True)
    size, _ = measure(file.path)
    if size > limits.max_run_bytes:
        raise QueryError(
            f"the run file has {size_text(size)}, but SQL is limited to {size_text(limits.max_run_bytes)}. "
            "Export the run and open the copy with DuckDB."
        )
    if not _free.acquire(blocking=False):
        raise StoreBusyError("another SQL query is running: only one runs at a time. Try again when it has ended.")
    copies = file.path.parent / _COPIES
    try:
        shutil.rmtree(copies, ignore_errors=True)  # left over by a killed server
        copies.mkdir()
        copy = copies / "run.duckdb"
        file.snapshot(copy)
        return _run(copy, sql, limits, copies)
    finally:
        shutil.rmtree(copies, ignore_errors=True)
        _free.release()


def _run(path: Path, sql: str, limits: SqlLimits, directory: Path, *, read_only: bool = False) -> bytes:
    """Run a query in a separate process; `directory` is its working directory."""
    if len(sql) > MAX_TEXT:
        raise QueryError(f"the query is longer than {MAX_TEXT} characters.")
    request = {
        "path": str(path),
        "read_only": read_only,
        "settings": safe_settings(memory_limit=f"{limits.memory_bytes // 2}B", threads=2),
        "sql": sql,
        "max_rows": limits.max_rows,
        "max_bytes": limits.max_answer_bytes,
        "memory_bytes": limits.memory_bytes,
        "sys_path": sys.path,
    }
    with (
        tempfile.TemporaryFile(dir=directory) as errors,
        subprocess.Popen(  # noqa: S603  (this interpreter, a file of this package)
            [sys.executable, "-I", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={},
            cwd=directory,
        ) as worker,
    ):
        try:
            answer, _ = worker.communicate(json.dumps(request).encode(), timeout=limits.timeout_s)
        except subprocess.TimeoutExpired as error:
            raise QueryTimeoutError(
                f"the query took longer than {limits.timeout_s:g} s. Narrow the query, or raise the time limit."
            ) from error
        finally:
            worker.kill()
        errors.seek(0)
        return _checked(answer, worker.returncode, errors.read(2000).decode(errors="replace"))


def _checked(answer: bytes, returncode: int, errors: str) -> bytes:
    """Return the answer; an error, or a crash of the process, raises a `QueryError`."""
    if returncode:
        last = errors.strip().splitlines()[-1:]
        raise QueryError(
            "the query crashed its process, most likely because it exceeded its memory limit"
            f"{': ' + last[0] if last else ''}. Narrow the query."
        )
    if answer.startswith(b'{"error":'):
        raise QueryError(json.loads(answer)["error"])
    return answer
