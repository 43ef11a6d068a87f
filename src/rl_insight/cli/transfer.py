"""Transfers to and from a server: frames, run files, exports and reports."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlencode

import msgspec

from rl_insight.cli.console import Advance, working
from rl_insight.cli.place import required_server
from rl_insight.reader.client import ServerClient
from rl_insight.transport.ingest_client import CONTENT_TYPE, INGEST_PATH, retry_after

if TYPE_CHECKING:
    from rl_insight.config.paths import Server
    from rl_insight.exchange.importing.destinations import ServerAnswer

_TIMEOUT_S = 120.0
LONG_TIMEOUT_S = 3600.0
"""For requests that take the server a long time."""
_COPY_BYTES = 1024 * 1024
RUN_PATH = "/api/v1/runs/file"
"""The route of run files."""


class RunTransfer(ServerClient):
    """Sends and receives frames and files over one connection."""

    def __init__(self, server: Server, timeout_s: float = _TIMEOUT_S) -> None:
        super().__init__(server, timeout_s)

    def post_frames(self, body: bytes) -> ServerAnswer:
        """Post frames to the ingest route."""
        from rl_insight.exchange.importing.destinations import ServerAnswer

        with self._connection.ask("POST", INGEST_PATH, body, {"Content-Type": CONTENT_TYPE}) as response:
            try:
                answer = msgspec.json.decode(response.read(), type=dict[str, Any])
            except msgspec.DecodeError:
                answer = {}
            return ServerAnswer(
                response.status,
                accepted=answer.get("accepted", 0),
                duplicates=answer.get("duplicates", 0),
                error=answer.get("error", ""),
                retry_after_s=retry_after(response.headers.get("Retry-After")),
            )

    def download(self, path: str, conditions: Mapping[str, Any], stream: BinaryIO, progress: Advance) -> Message:
        """Write the response of a route to a stream; returns its headers.

        `progress` is called with the bytes received and the total; conditions that are None are omitted.
        """
        query = urlencode({name: value for name, value in conditions.items() if value is not None})
        with self._connection.ask("GET", f"{path}?{query}") as response:
            if response.status != 200:
                self.checked(response.status, response.read())
            total, done = response.length, 0
            while part := response.read(_COPY_BYTES):
                stream.write(part)
                done += len(part)
                progress(done, total)
            return response.headers

    def upload_run(self, source: Path) -> dict[str, Any]:
        """Send a run file; returns the run as the server lists it."""
        headers = {"Content-Type": "application/vnd.rl-insight.run", "Content-Length": str(source.stat().st_size)}
        with source.open("rb") as stream, self._connection.ask("POST", RUN_PATH, stream, headers) as response:
            info: dict[str, Any] = self.checked(response.status, response.read())
            return info


def fetch_file(path: str, conditions: Mapping[str, Any], output: Path, doing: str) -> Message:
    """Write the response of a route to a file, atomically; returns the headers of the response."""
    from rl_insight.exchange.exporting.writers.output import output_file

    with (
        closing(RunTransfer(required_server(), LONG_TIMEOUT_S)) as transfer,
        working(doing) as progress,
        output_file(output, is_packed=True) as stream,
    ):
        return transfer.download(path, conditions, stream, progress)
