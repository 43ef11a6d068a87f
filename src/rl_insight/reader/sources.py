"""Where the answers about one run come from: a server, or the run's file."""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_insight.errors import InsightError
from rl_insight.reader.client import RefusedError, ServerClient
from rl_insight.urls import without_credentials

if TYPE_CHECKING:
    from rl_insight.store import RunStore
    from rl_insight.store.read_only import ReadOnlyRun

_API = "/api/v1/"
_MAX_ANSWER_BYTES = 512 * 1024**2
_MAX_SQL_MEMORY_BYTES = 8 * 1024**3
"""What a query on a file may take; on a server its settings say so."""


class RunSource(ABC):
    """Answers questions about one run; the same question gets the same answer from every source."""

    run_id: str

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the run is, for messages."""

    @abstractmethod
    def ask(self, question: str, **conditions: Any) -> Any:
        """Return plain values, as the route `/api/v1/<question>` describes them; conditions that are None do not count.

        Raises:
            InsightError: it cannot be answered; the message says why.
        """

    @abstractmethod
    def sql(self, text: str, *, timeout_s: float, max_rows: int) -> dict[str, Any]:
        """Run one SELECT; returns `columns`, `types`, `rows` and `truncated`.

        Raises:
            InsightError: it was refused; the message says why.
        """

    @abstractmethod
    def compare(self, other: RunSource) -> dict[str, Any]:
        """Return what is different in another run of the same place, as the route `/api/v1/runs/compare` does.

        Raises:
            InsightError: they cannot be compared; the message says why.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections; idempotent."""


class ServerSource(RunSource):
    """A run on a server, also while it is being recorded."""

    def __init__(self, client: ServerClient, run_id: str) -> None:
        self.run_id = run_id
        self._client = client

    @property
    def place(self) -> str:
        """The address of the server."""
        return without_credentials(self._client.server.url)

    def ask(self, question: str, **conditions: Any) -> Any:
        """Ask the route."""
        return self._client.get(_API + question, {**conditions, "run": self.run_id})

    def sql(self, text: str, *, timeout_s: float, max_rows: int) -> dict[str, Any]:
        """Ask the SQL route, which its server may have switched off."""
        from urllib.parse import quote

        body = {"sql": text, "timeout_s": timeout_s, "max_rows": max_rows}
        try:
            found: dict[str, Any] = self._client.call("POST", f"{_API}sql?run={quote(self.run_id, safe='')}", body)
        except RefusedError as error:
            if error.status not in {403, 404}:
                raise
            raise InsightError(
                f"{self.place} does not answer SQL: {error} Start the server with sql.enabled=true, or copy the run "
                f"with `rl-insight runs export {self.run_id}` and open that file, which answers SQL without a server."
            ) from error
        return found

    def compare(self, other: RunSource) -> dict[str, Any]:
        """Ask the route."""
        found: dict[str, Any] = self.ask("runs/compare", other=other.run_id)
        return found

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class StoreSource(RunSource):
    """A run file that this process has open."""

    def __init__(self, file: ReadOnlyRun | RunStore, run_id: str | None = None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._findings: dict[str, Any] = {}
        self.run_id = run_id or str(self.ask("summary")["run_id"] or file.path.stem)

    @property
    def place(self) -> str:
        """The path of the file."""
        return str(self._file.path)

    def ask(self, question: str, **conditions: Any) -> Any:
        """Run the query."""
        from rl_insight.reader.answers import answer
        from rl_insight.store.read_only import ReadOnlyRun

        with self._lock, self._file.reader() as cursor:
            if question != "findings" or not isinstance(self._file, ReadOnlyRun):
                return answer(cursor, question, conditions)
            # To diagnose a run of a thousand processes takes seconds, and nothing changes a file that is being read.
            key = repr(sorted(conditions.items()))
            if key not in self._findings:
                self._findings[key] = answer(cursor, question, conditions)
            return copy.deepcopy(self._findings[key])

    def sql(self, text: str, *, timeout_s: float, max_rows: int) -> dict[str, Any]:
        """Run the SELECT on the file."""
        import msgspec

        from rl_insight.store import RunStore
        from rl_insight.store.queries import SqlLimits, run_sql, run_sql_on_file

        limits = SqlLimits(
            timeout_s=timeout_s,
            max_rows=max_rows,
            max_answer_bytes=_MAX_ANSWER_BYTES,
            memory_bytes=_MAX_SQL_MEMORY_BYTES,
            max_run_bytes=2**63 - 1,
        )
        with self._lock:
            if isinstance(self._file, RunStore):
                answer = run_sql(self._file, text, limits)
            else:
                answer = run_sql_on_file(self._file.path, text, limits)
        found: dict[str, Any] = msgspec.json.decode(answer)
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


class FileSource(StoreSource):
    """A run file that no server has open; it is opened for reading only, and nothing in it changes.

    A file of an older version is brought up to date first, as a server does when it opens it.
    """

    def __init__(self, path: Path, run_id: str | None = None) -> None:
        from rl_insight.store.read_only import open_run_file

        super().__init__(open_run_file(Path(path)), run_id)
