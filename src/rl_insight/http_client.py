"""The HTTP client of everything but the training transport: one kept connection, bounded in time and in size.

Three places need something else and have their own: the training transport (interruptible, fork-safe), the reading of
hundreds of metrics pages at once (`hardware.fetch`, `server.scrape`), and downloads (proxies, redirects, resuming).
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from rl_insight.errors import ConfigError, InsightError
from rl_insight.urls import bearer, split_http_url, without_credentials

MAX_ANSWER_BYTES = 64 * 1024 * 1024


class HttpError(InsightError):
    """The other end cannot be reached, took too long, or does not speak HTTP."""


class Reply(NamedTuple):
    """What the other end answered."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    reason: str = ""

    @property
    def is_success(self) -> bool:
        """Whether the request was granted."""
        return 200 <= self.status < 300

    @property
    def sentence(self) -> str:
        """The answer in one short line, for messages."""
        return " ".join(self.body.decode("utf-8", "replace").split())[:300] or self.reason


class Connection:
    """Requests to one server over a connection that stays open between them; for one thread at a time.

    Args:
        url: The server, with a path that every request's path is added to.
        token: Shown to it.
        headers: Sent with each request.
        timeout_s: How long the server may keep silent.
        trust: The certificate to trust in place of the system's, whatever name it is for.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        trust: str | None = None,
    ) -> None:
        parts = split_http_url(url)
        self.address = without_credentials(url)
        if parts is None:
            raise ConfigError(f"{self.address!r} is not an http or https URL with a host.")
        self._path = parts.path
        self._headers = {**(headers or {}), **bearer(token)}
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=trust)
            context.check_hostname = trust is None
            self._connection = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=timeout_s, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)

    @contextmanager
    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and yield its answer, to be read as a stream.

        Raises:
            HttpError: the server cannot be reached, or breaks off.
        """
        try:
            target = self._path.rstrip("/") + path if path.startswith("/") else (self._path or "/") + path
            self._connection.request(method, target, body=body, headers={**self._headers, **(headers or {})})
            with self._connection.getresponse() as response:
                yield response
                if not response.isclosed():
                    self.close()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            reason = str(error) or type(error).__name__
            raise HttpError(f"{self.address} does not answer: {reason}.") from error
        except BaseException:
            self.close()
            raise

    def request(
        self,
        method: str,
        path: str = "",
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> Reply:
        """Send a request and return its answer, as much of it as `max_bytes` allows.

        Raises:
            HttpError: the server cannot be reached.
        """
        with self.ask(method, path, body, headers) as response:
            return Reply(response.status, response.read(max_bytes), dict(response.headers.items()), response.reason)

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        self._connection.close()


def request(method: str, url: str, body: Any = None, *, headers: Mapping[str, str] | None = None, **how: Any) -> Reply:
    """Send one request over a new connection; `how` is passed to `Connection`.

    Raises:
        HttpError: the other end cannot be reached.
        ConfigError: it is not an http or https URL.
    """
    parts = split_http_url(url)
    query = f"?{parts.query}" if parts is not None and parts.query else ""
    connection = Connection(url, **how)
    try:
        return connection.request(method, query, body, headers)
    finally:
        connection.close()
