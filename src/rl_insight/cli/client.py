"""How commands find the running server and talk to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rl_insight.config.paths import data_dir as default_data_dir
from rl_insight.errors import InsightError
from rl_insight.http_client import Connection

if TYPE_CHECKING:
    from rl_insight.server.state import ServerRecord

_TIMEOUT_S = 10.0


def directory_of(data_dir: str | None) -> Path:
    """Return the data directory that a command means."""
    return Path(data_dir).expanduser() if data_dir else default_data_dir()


def running_server(data_dir: str | None) -> ServerRecord:
    """Return the record of the running server.

    Raises:
        InsightError: none runs there.
    """
    from rl_insight.server.state import read_record

    directory = directory_of(data_dir)
    record = read_record(directory)
    if record is None:
        raise InsightError(f"no server runs on {directory}. Start one with `rl-insight server start`.")
    return record


def call(record: ServerRecord, method: str, path: str, content: Any = None, timeout_s: float = _TIMEOUT_S) -> Any:
    """Ask the server something; returns its JSON.

    Raises:
        InsightError: it cannot be reached, or it refused; the message is the server's own.
    """
    status, body = request(record, method, path, content, timeout_s)
    try:
        answer = msgspec.json.decode(body)
    except msgspec.DecodeError:
        answer = {"error": body.decode("utf-8", "replace").strip()}
    if not 200 <= status < 300:
        raise InsightError(str(answer.get("error") if isinstance(answer, dict) else answer))
    return answer


def request(
    record: ServerRecord, method: str, path: str, content: Any = None, timeout_s: float = _TIMEOUT_S
) -> tuple[int, bytes]:
    """Send one request; returns the status and the body.

    Raises:
        InsightError: the server cannot be reached.
    """
    body = None if content is None else msgspec.json.encode(content)
    headers = {} if content is None else {"Content-Type": "application/json"}
    connection = connect(record, timeout_s)
    try:
        reply = connection.request(method, path, body, headers)
    finally:
        connection.close()
    return reply.status, reply.body


def connect(record: ServerRecord, timeout_s: float = _TIMEOUT_S) -> Connection:
    """Return a connection to the server; with TLS, exactly the certificate it was started with is trusted."""
    return Connection(record.url, token=record.token, timeout_s=timeout_s, trust=record.tls_cert)
