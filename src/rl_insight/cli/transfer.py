"""Bytes to and from the running server: frames, and whole run files."""

from __future__ import annotations

import http.client
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import msgspec

from rl_insight.cli.client import _tls
from rl_insight.errors import InsightError
from rl_insight.transport._http_client import CONTENT_TYPE, INGEST_PATH

if TYPE_CHECKING:
    from rl_insight.exchange.destinations import Answer
    from rl_insight.server.state import ServerRecord

_TIMEOUT_S = 120.0
_COPY_BYTES = 1024 * 1024
_RUN_PATH = "/api/v1/runs/file"


class Connection:
    """A connection to the server that stays open between requests."""

    def __init__(self, record: ServerRecord) -> None:
        self._record = record
        url = urlsplit(record.url)
        self._headers = {"Authorization": f"Bearer {record.token}"} if record.token else {}
        self._connection: http.client.HTTPConnection
        if url.scheme == "https":
            context = _tls(record.tls_cert)
            self._connection = http.client.HTTPSConnection(
                url.hostname or "", url.port, timeout=_TIMEOUT_S, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=_TIMEOUT_S)

    def post_frames(self, body: bytes) -> Answer:
        """Post frames to the ingest route.

        Raises:
            InsightError: the server cannot be reached.
        """
        from rl_insight.exchange.destinations import Answer

        with self._asking("POST", INGEST_PATH, body, {"Content-Type": CONTENT_TYPE}) as response:
            answer = _object(response.read())
            return Answer(
                response.status,
                accepted=answer.get("accepted", 0),
                duplicates=answer.get("duplicates", 0),
                error=answer.get("error", ""),
                retry_after_s=_seconds(response.headers.get("Retry-After")),
            )

    def download_run(self, run_id: str, target: Path) -> None:
        """Write a consistent copy of a run's file.

        Raises:
            InsightError: there is no such run, or the server cannot be reached.
        """
        with self._asking("GET", f"{_RUN_PATH}?run={quote(run_id, safe='')}") as response:
            if response.status != 200:
                raise InsightError(_error(response))
            with target.open("wb") as stream:
                shutil.copyfileobj(response, stream, _COPY_BYTES)

    def upload_run(self, source: Path) -> dict[str, Any]:
        """Give the server a run file; returns what it says about the run.

        Raises:
            InsightError: it refused, or cannot be reached.
        """
        headers = {"Content-Type": "application/vnd.rl-insight.run", "Content-Length": str(source.stat().st_size)}
        with source.open("rb") as stream, self._asking("POST", _RUN_PATH, stream, headers) as response:
            if response.status != 200:
                raise InsightError(_error(response))
            return _object(response.read())

    @contextmanager
    def _asking(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        try:
            self._connection.request(method, path, body=body, headers=self._headers | (headers or {}))
            with self._connection.getresponse() as response:
                yield response
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            reason = error or type(error).__name__
            raise InsightError(f"the server at {self._record.url} does not answer: {reason}.") from error

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._connection.close()


def _object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _error(response: http.client.HTTPResponse) -> str:
    return str(_object(response.read()).get("error") or f"the server answered {response.status}.")


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
