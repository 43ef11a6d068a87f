"""How commands find the running server and talk to it."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from rl_insight.config.paths import data_dir as default_data_dir
from rl_insight.errors import InsightError

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
    url = urlsplit(record.url)
    headers = {"Authorization": f"Bearer {record.token}"} if record.token else {}
    body = None
    if content is not None:
        body = msgspec.json.encode(content)
        headers["Content-Type"] = "application/json"
    connection: http.client.HTTPConnection
    if url.scheme == "https":
        connection = http.client.HTTPSConnection(
            url.hostname or "", url.port, timeout=timeout_s, context=_tls(record.tls_cert)
        )
    else:
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=timeout_s)
    try:
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise InsightError(f"the server at {record.url} does not answer: {error or type(error).__name__}.") from error
    finally:
        connection.close()


def _tls(certificate: str | None) -> ssl.SSLContext:
    """Trust exactly the certificate that the server on this machine was started with, whatever name it is for."""
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    return context
