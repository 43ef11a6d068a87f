"""Sources of answers about one run: a server, or the run's file."""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from rl_insight.errors import ConfigError, InsightError
from rl_insight.reader.client import RefusedError, ServerClient
from rl_insight.urls import without_credentials

if TYPE_CHECKING:
    from rl_insight.store.connections import RunFile
    from rl_insight.store.queries import Cursor, Finding

_API = "/api/v1/"
_MAX_ANSWER_BYTES = 512 * 1024**2
_MAX_SQL_MEMORY_BYTES = 8 * 1024**3
"""The limits of a query on a file; a server uses its settings."""


class RunSource(ABC):
    """Answers questions about one run; every source gives the same answer.

    All methods raise an `InsightError` that says what went wrong.
    """

    run_id: str

    @property
    @abstractmethod
    def place(self) -> str:
        """The location of the run, for messages."""

    @abstractmethod
    def ask(self, question: str, **conditions: Any) -> Any:
        """Return plain values, as the route `/api/v1/<question>` does; conditions that are None are ignored."""

    @abstractmethod
    def sql(self, text: str, *, timeout_s: float, max_rows: int) -> dict[str, Any]:
        """Run one SELECT; return `columns`, `types`, `rows` and `truncated`."""

    @abstractmethod
    def compare(self, other: RunSource) -> dict[str, Any]:
        """Compare with another run at the same place, as the route `/api/v1/runs/compare` does."""

    @abstractmethod
    def close(self) -> None:
        """Close files and connections; idempotent."""


class ServerSource(RunSource):
    """A run on a server, even while it is being recorded."""

    def __init__(self, client: ServerClient, run_id: str) -> None:
        self.run_id = run_id
        self._client = client

    @property
    def place(self) -> str:
        """The address of the server."""
        return without_credentials(self._client.server.url)

    def ask(self, question: str, **conditions: Any) -> Any:
        """Query the route."""
        return self._client.get(_API + question, {**conditions, "run": self.run_id})

    def sql(self, text: str, *, timeout_s: float, max_rows: int) -> dict[str, Any]:
        """Query the SQL route, which may be disabled."""
        from urllib.parse import quote

        body = {"sql": text, "timeout_s": timeout_s, "max_rows": max_rows}
        try:
            found: dict[str, Any] = self._client.call("POST", f"{_API}sql?run={quote(self.run_id, safe='')}", body)
        except RefusedError as error:
            if error.status not in {403, 404}:
                raise
            raise InsightError(
                f"{self.place} does not allow SQL: {error} Start the server with sql.enabled=true, or copy the run "
                f"with `rl-insight runs export {self.run_id}` and open that file, which supports SQL without a server."
            ) from error
        return found

    def compare(self, other: RunSource) -> dict[str, Any]:
        """Query the route."""
        found: dict[str, Any] = self.ask("runs/compare", other=other.run_id)
        return found

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class StoreSource(RunSource):
    """A run file that this process has open."""

    def __init__(self, file: RunFile, run_id: str | None = None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._findings: dict[str, Any] = {}
        self.run_id = run_id or str(self.ask("summary")["run_id"] or file.path.stem)

    @property
    def place(self) -> str:
        """The path of the file."""
        return str(self._file.path)

    def ask(self, question: str, **conditions: Any) -> Any:
        """Run the query.

        Raises:
            ConfigError: the question or a condition is unknown, or a condition is missing.
            QueryError: a condition is invalid.
        """
        import msgspec

        from rl_insight.questions import QUESTIONS
        from rl_insight.store import RunStore

        if question not in QUESTIONS:
            raise ConfigError(f"there is no question {question!r}: choose one of {', '.join(sorted(QUESTIONS))}.")
        asked = QUESTIONS[question]
        given = {name: value for name, value in conditions.items() if value is not None}
        if unknown := sorted(given.keys() - asked.conditions):
            known = ", ".join(asked.conditions)
            raise ConfigError(f"{question} has no condition {unknown[0]!r}: the conditions are {known}.")
        if missing := [name for name in asked.required if name not in given]:
            raise ConfigError(f"{question} requires the condition {missing[0]!r}.")
        with self._lock, self._file.reader() as cursor:
            if question != "findings":
                return msgspec.to_builtins(asked.ask(cursor, given))
            # Diagnosing a run of a thousand processes takes seconds, and a file open for reading only never changes.
            key = repr(sorted(given.items()))
            if key not in self._findings or isinstance(self._file, RunStore):
                self._findings[key] = msgspec.to_builtins(asked.ask(cursor, given) or _diagnosed(cursor, **given))
            return copy.deepcopy(self._findings[key])

    def sql(self, text: str, *, timeout_s: float, max_rows: int) -> dict[str, Any]:
        """Run the SELECT on the file."""
        import msgspec

        from rl_insight.store.queries import SqlLimits, run_sql

        limits = SqlLimits(timeout_s, max_rows, _MAX_ANSWER_BYTES, _MAX_SQL_MEMORY_BYTES, 2**63 - 1)
        with self._lock:
            found: dict[str, Any] = msgspec.json.decode(run_sql(self._file, text, limits))
        return found

    def compare(self, other: RunSource) -> dict[str, Any]:
        """Read both files."""
        import msgspec

        from rl_insight.diagnosis.run_comparison import compare_runs

        if not isinstance(other, StoreSource):
            raise InsightError(f"cannot compare {self.place} with {other.place}: one is a file, the other is not.")
        with self._lock, self._file.reader() as first, other._file.reader() as second:
            found: dict[str, Any] = msgspec.to_builtins(compare_runs(first, second))
        return found

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _diagnosed(cursor: Cursor, *, explained: bool = False, muted: bool = False) -> list[Finding]:
    """Diagnose a run that live diagnosis never saw."""
    from rl_insight.diagnosis.run import replay, without_muted
    from rl_insight.store.queries import read_findings, top_findings

    if read_findings(cursor):
        return []
    report = replay(cursor)
    kept = (report if muted else without_muted(cursor, report)).findings
    return kept if explained else top_findings(kept)
