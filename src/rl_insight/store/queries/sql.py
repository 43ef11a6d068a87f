"""SQL from users: one SELECT, read-only, limited in time and rows, and unable to reach anything but the run."""

from __future__ import annotations

import re
import threading
from typing import Any

import duckdb
import msgspec

from rl_insight.store.errors import QueryError, QueryTimeoutError
from rl_insight.store.queries.base import Cursor

MAX_TEXT = 100_000
_UNWANTED_CALL = re.compile(r'(checkpoint|write_log)"?\s*\(', re.IGNORECASE)
"""Functions without an effect on data, yet none of a reader's business."""


class SqlResult(msgspec.Struct, frozen=True):
    """The rows of a query."""

    columns: list[str]
    types: list[str]
    rows: list[list[Any]]
    truncated: bool
    """There were more rows than asked for."""


def run_sql(cursor: Cursor, sql: str, *, timeout_s: float = 10.0, max_rows: int = 10_000) -> SqlResult:
    """Run one SELECT on a cursor of `RunStore.reader`, whose transaction cannot write.

    The store has no access to files, extensions or Python variables, and its settings are locked.

    Raises:
        QueryError: it is not one SELECT, or DuckDB refuses it; the message says why.
        QueryTimeoutError: it took too long.
    """
    _check(sql)
    timer = threading.Timer(timeout_s, cursor.interrupt)
    timer.daemon = True
    timer.start()
    try:
        result = cursor.execute(sql)
        names = [column[0] for column in result.description or ()]
        types = [str(column[1]) for column in result.description or ()]
        rows = result.fetchmany(max_rows + 1)
    except duckdb.InterruptException as error:
        raise QueryTimeoutError(
            f"the query took longer than {timeout_s:g} s. Ask for less, or allow more time."
        ) from error
    except duckdb.Error as error:
        raise QueryError(f"DuckDB refused the query: {error}") from error
    finally:
        timer.cancel()
    return SqlResult(names, types, [[_plain(value) for value in row] for row in rows[:max_rows]], len(rows) > max_rows)


def _check(sql: str) -> None:
    if len(sql) > MAX_TEXT:
        raise QueryError(f"the query is longer than {MAX_TEXT} characters.")
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise QueryError(f"not valid SQL: {error}") from error
    if len(statements) != 1:
        raise QueryError(f"give one statement, not {len(statements)}.")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise QueryError("only SELECT is allowed: the run is read-only.")
    unwanted = _UNWANTED_CALL.search(sql)
    if unwanted:
        raise QueryError(f"{unwanted[1]} is not allowed: the run is read-only.")


def _plain(value: Any) -> Any:
    """Return a value that JSON can carry."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    return str(value)
