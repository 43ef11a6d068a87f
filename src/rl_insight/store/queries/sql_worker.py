"""The process that runs one SQL query on a copy of a run file; `sql.py` starts it and kills it.

It is a script, not a module to import: the package's imports would cost each query half a second. It reads a JSON
object from its standard input and writes a `SqlResult`, or an object with `error`, to its standard output.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

_FETCH_ROWS = 64
_LARGEST_INTEGER = 2**63


def main() -> None:
    """Answer the query on the standard input."""
    request = json.load(sys.stdin)
    sys.path[:] = request["sys_path"]
    # The address space limit covers everything a query does, even a single function call.
    resource.setrlimit(resource.RLIMIT_AS, (request["memory_bytes"], request["memory_bytes"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import msgspec

    try:
        answer = _answer(request)
    except MemoryError:
        answer = msgspec.json.encode({"error": "the query exceeded its memory limit."})
    sys.stdout.buffer.write(answer)


def _answer(request: dict[str, Any]) -> bytes:
    import duckdb
    import msgspec

    try:
        connection = _open(request)
        problem = _refusal(duckdb.extract_statements(request["sql"]))
        if problem:
            return msgspec.json.encode({"error": problem})
        connection.execute("BEGIN TRANSACTION READ ONLY")
        return _rows(connection.execute(request["sql"]), request["max_rows"], request["max_bytes"])
    except duckdb.OutOfMemoryException:
        return msgspec.json.encode({"error": "the query exceeded its memory limit."})
    except duckdb.Error as error:
        return msgspec.json.encode({"error": f"DuckDB refused the query: {error}"})


def _open(request: dict[str, Any]) -> Any:
    import duckdb

    settings = request["settings"]
    # Without file access, DuckDB refuses to change its temporary directory, so that comes first.
    access = settings.pop("enable_external_access")
    connection = duckdb.connect(
        request["path"], read_only=request["read_only"], config={**settings, "temp_directory": ""}
    )
    # A name in SQL must never mean a Python variable.
    connection.execute("SET python_enable_replacements = false")
    connection.execute(f"SET enable_external_access = {access}")
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _refusal(statements: list[Any]) -> str:
    """Return why statements are refused; empty for one SELECT."""
    import duckdb

    if len(statements) != 1:
        return f"give one statement, not {len(statements)}."
    if statements[0].type != duckdb.StatementType.SELECT:
        return "only SELECT is allowed: the run is read-only."
    return ""


def _rows(result: Any, max_rows: int, max_bytes: int) -> bytes:
    """Return the rows as JSON, as many as both limits allow."""
    import msgspec

    described = result.description or ()
    rows: list[bytes] = []
    left = max_bytes
    truncated = False
    while not truncated and (found := result.fetchmany(_FETCH_ROWS)):
        for row in found:
            line = msgspec.json.encode([_plain(value) for value in row])
            left -= len(line) + 1
            if len(rows) == max_rows or left < 0:
                truncated = True
                break
            rows.append(line)
    columns = msgspec.json.encode([column[0] for column in described])
    types = msgspec.json.encode([str(column[1]) for column in described])
    flag = b"true" if truncated else b"false"
    return b'{"columns":%b,"types":%b,"rows":[%b],"truncated":%b}' % (columns, types, b",".join(rows), flag)


def _plain(value: Any) -> Any:
    """Return a value that JSON can represent."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -_LARGEST_INTEGER <= value < _LARGEST_INTEGER else str(value)
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


if __name__ == "__main__":
    main()
