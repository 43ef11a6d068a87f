"""Helpers for all queries: the cursor, rows as structs, ids and patterns as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import duckdb
import msgspec

from rl_insight.schema.names import NESTED_STATE_SEGMENT, PHASE_SEGMENT, STATE_SEGMENT
from rl_insight.store.errors import QueryError

if TYPE_CHECKING:
    from rl_insight.store.run_store import RunStore

Cursor = duckdb.DuckDBPyConnection
Parameters = dict[str, Any]
Row = TypeVar("Row", bound=msgspec.Struct)
Value = TypeVar("Value")

MAX_LIMIT = 10_000
INTEGER_LIMIT: Final = 2**62
"""Integers in conditions are smaller than this: the sum of two fits 64 bits."""
IS_STATE: Final = f"segment IN ('{STATE_SEGMENT}', '{NESTED_STATE_SEGMENT}', '{PHASE_SEGMENT}')"
"""The condition for states and phases."""
_HEX_ID = re.compile(r"[0-9a-fA-F]{1,16}")


def structs(cursor: Cursor, kind: type[Row], sql: str, parameters: Parameters | None = None) -> list[Row]:
    """Run a query whose columns are the fields of a struct, in order."""
    return [kind(*row) for row in cursor.execute(sql, parameters or {}).fetchall()]


def conditions(fragments: Mapping[str, str], values: Parameters) -> tuple[str, Parameters]:
    """Return a WHERE clause of the fragments that have values, and those values.

    The SQL consists of fixed fragments only. Unused ones are left out, not disabled by NULL, so that DuckDB can skip
    the parts of a file that cannot match.

    >>> conditions({"step": "step = $step", "status": "status = $status"}, {"step": 3, "status": None})
    ('step = $step', {'step': 3})
    """
    given = {name: value for name, value in values.items() if value is not None}
    return " AND ".join(fragments[name] for name in given) or "true", given


def used(sql: str, parameters: Parameters) -> Parameters:
    """Return the parameters that a statement uses; DuckDB accepts no others.

    >>> used("SELECT $step", {"step": 3, "limit": 10})
    {'step': 3}
    """
    return {name: value for name, value in parameters.items() if f"${name}" in sql}


def checked_limit(limit: int) -> int:
    """Return a valid row limit."""
    if not 1 <= limit <= MAX_LIMIT:
        raise QueryError(f"limit {limit} is out of range: it must be from 1 to {MAX_LIMIT}.")
    return limit


def hex_id(number: int | None) -> str | None:
    """Return a span id in hexadecimal; None for no span."""
    return f"{number:016x}" if number else None


def parse_id(text: str) -> int:
    """Parse a span id.

    Raises:
        QueryError: it is not 1 to 16 hexadecimal digits.
    """
    if not _HEX_ID.fullmatch(text):
        raise QueryError(f"{text[:40]!r} is not a span id: it must be 16 hexadecimal digits.")
    return int(text, 16)


def json_path(key: str) -> str:
    """Return the JSON path of a key of an object."""
    if key in {"", "*"} or '"' in key or "\\" in key or "\0" in key:
        raise QueryError(f"the key {key[:40]!r} cannot be queried: it is empty, a star, or has a quote or a backslash.")
    return f'$."{key}"'


def like_pattern(text: str) -> str:
    """Return a LIKE pattern (escape character ``!``) that matches a substring."""
    for special in "!%_":
        text = text.replace(special, f"!{special}")
    return f"%{text}%"


class Kept(Generic[Value]):
    """A value about the run, stored as JSON in its file."""

    def __init__(self, key: str, kind: Any) -> None:
        self._key = key
        self._kind = kind

    def read(self, cursor: Cursor) -> Value | None:
        """Return the value; None if it was never written."""
        rows = cursor.execute("SELECT value FROM meta WHERE key = $key", {"key": self._key}).fetchall()
        found: Value | None = msgspec.json.decode(rows[0][0], type=self._kind) if rows else None
        return found

    def write(self, store: RunStore, value: Value) -> None:
        """Replace the value, in a separate transaction."""
        with store.writing() as connection:
            self.put(connection, value)

    def put(self, connection: Cursor, value: Value) -> None:
        """Replace the value, inside the caller's transaction."""
        text = msgspec.json.encode(value).decode()
        connection.execute("DELETE FROM meta WHERE key = $key", {"key": self._key})
        connection.execute("INSERT INTO meta VALUES ($key, $value)", {"key": self._key, "value": text})
