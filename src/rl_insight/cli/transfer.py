"""Bytes to and from the running server: frames, run files, exports and reports."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Mapping
from contextlib import closing
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlencode

import msgspec

from rl_insight.cli.console import working
from rl_insight.errors import InsightError
from rl_insight.http_client import Connection
from rl_insight.transport.ingest_client import CONTENT_TYPE, INGEST_PATH, retry_after

if TYPE_CHECKING:
    from rl_insight.exchange.importing.destinations import ServerAnswer
    from rl_insight.reader.places import Server

_TIMEOUT_S = 120.0
LONG_TIMEOUT_S = 3600.0
"""For what a server has to compute before it can answer."""
_COPY_BYTES = 1024 * 1024
RUN_PATH = "/api/v1/runs/file"
"""Where a server takes and gives the file of a run."""

Progress = Callable[[int, int | None], None]


class RunTransfer:
    """Frames and files over one connection to the server."""

    def __init__(self, server: Server, timeout_s: float = _TIMEOUT_S) -> None:
        self._connection = Connection(server.url, token=server.token, timeout_s=timeout_s, trust=server.tls_cert)

    def post_frames(self, body: bytes) -> ServerAnswer:
        """Post frames to the ingest route.

        Raises:
            InsightError: the server cannot be reached.
        """
        from rl_insight.exchange.importing.destinations import ServerAnswer

        with self._connection.ask("POST", INGEST_PATH, body, {"Content-Type": CONTENT_TYPE}) as response:
            answer = _object(response.read())
            return ServerAnswer(
                response.status,
                accepted=answer.get("accepted", 0),
                duplicates=answer.get("duplicates", 0),
                error=answer.get("error", ""),
                retry_after_s=retry_after(response.headers.get("Retry-After")),
            )

    def download(self, path: str, conditions: Mapping[str, Any], stream: BinaryIO, progress: Progress) -> Message:
        """Write what a route sends; returns its headers.

        `progress` is called with the bytes done and those in all; conditions that are None are left out.

        Raises:
            InsightError: the server refused, or cannot be reached.
        """
        query = urlencode({name: value for name, value in conditions.items() if value is not None})
        with self._connection.ask("GET", f"{path}?{query}") as response:
            if response.status != 200:
                raise InsightError(_error(response))
            total, done = response.length, 0
            while part := response.read(_COPY_BYTES):
                stream.write(part)
                done += len(part)
                progress(done, total)
            return response.headers

    def upload_run(self, source: Path) -> dict[str, Any]:
        """Give the server a run file; returns what it says about the run.

        Raises:
            InsightError: it refused, or cannot be reached.
        """
        headers = {"Content-Type": "application/vnd.rl-insight.run", "Content-Length": str(source.stat().st_size)}
        with source.open("rb") as stream, self._connection.ask("POST", RUN_PATH, stream, headers) as response:
            if response.status != 200:
                raise InsightError(_error(response))
            return _object(response.read())

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._connection.close()


def fetch_file(server: Server, path: str, conditions: Mapping[str, Any], output: Path, doing: str) -> Message:
    """Write what a route sends as a file, which is there in full or not at all; returns the route's headers.

    Raises:
        InsightError: the server refused or cannot be reached, or the file cannot be written.
    """
    from rl_insight.exchange.exporting.writers.output import output_file

    with (
        closing(RunTransfer(server, LONG_TIMEOUT_S)) as transfer,
        working(doing) as progress,
        output_file(output, is_packed=True) as stream,
    ):
        return transfer.download(path, conditions, stream, progress)


def _object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _error(response: http.client.HTTPResponse) -> str:
    return str(_object(response.read()).get("error") or f"the server answered {response.status}.")
