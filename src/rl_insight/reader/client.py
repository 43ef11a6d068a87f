"""Requests to a server over one persistent connection."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from rl_insight.config.loading import TOKEN_VARIABLE
from rl_insight.config.paths import Server
from rl_insight.errors import InsightError
from rl_insight.http_client import MAX_ANSWER_BYTES, Connection, HttpError

_TIMEOUT_S = 60.0
_JSON = {"Content-Type": "application/json"}


class RefusedError(InsightError):
    """The server refused a request; `status` is the HTTP status code."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ServerClient:
    """A thread-safe client of a server."""

    def __init__(self, server: Server, timeout_s: float = _TIMEOUT_S) -> None:
        self.server = server
        self._connection = Connection(server.url, token=server.token, timeout_s=timeout_s, trust=server.tls_cert)
        self._lock = threading.Lock()

    def get(self, path: str, conditions: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON of the response to a GET; conditions that are None are left out.

        Raises:
            HttpError: it cannot be reached.
            RefusedError: the server refused it; the message is the server's.
        """
        return self.call("GET", path, conditions=conditions)

    def call(self, method: str, path: str, content: Any = None, conditions: Mapping[str, Any] | None = None) -> Any:
        """Send a request with an optional JSON body; return the JSON of the response. Errors are those of `get`."""
        query = urlencode(list(_pairs(conditions or {})))
        return self.checked(*self.request(method, f"{path}?{query}" if query else path, content))

    def checked(self, status: int, body: bytes) -> Any:
        """Return the JSON of a response.

        Raises:
            RefusedError: the server refused the request; the message is the server's.
        """
        try:
            answer = msgspec.json.decode(body)
        except msgspec.DecodeError:
            answer = {"error": body.decode("utf-8", "replace").strip()[:500] or f"it answered {status}."}
        if not 200 <= status < 300:
            raise RefusedError(self._refusal(status, answer), status)
        return answer

    def request(self, method: str, path: str, content: Any = None) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the response."""
        body = None if content is None else msgspec.json.encode(content)
        with self._lock:
            try:
                reply = self._connection.request(method, path, body, None if body is None else _JSON)
            except HttpError:
                if method != "GET":
                    raise
                # The server may have closed an idle connection; a GET can be retried.
                reply = self._connection.request(method, path, body)
        if len(reply.body) >= MAX_ANSWER_BYTES:
            raise InsightError(f"the response of {self.server.url} is larger than 64 MiB. Narrow the request.")
        return reply.status, reply.body

    def _refusal(self, status: int, answer: Any) -> str:
        reason = str(answer.get("error") or answer.get("detail") or answer) if isinstance(answer, dict) else str(answer)
        if status == 401:
            address = self._connection.address
            return f"{address} refused the request: {reason} Give its token: --token, or {TOKEN_VARIABLE}."
        return reason

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._connection.close()


def _pairs(conditions: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in conditions.items():
        if value is None:
            continue
        for one in value if isinstance(value, (list, tuple)) else (value,):
            yield name, str(one).lower() if isinstance(one, bool) else str(one)
