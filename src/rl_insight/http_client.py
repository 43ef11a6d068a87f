"""The general HTTP client: a keep-alive connection with limits on time and size.

Three places have different needs and separate clients: the training transport (interruptible, fork-safe), reading
hundreds of metrics pages at once (`hardware.fetch`, `server.scrape`), and downloads (proxies, redirects, resuming).
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from rl_insight.errors import ConfigError, InsightError
from rl_insight.proxies import proxy_headers, proxy_of
from rl_insight.urls import bearer, host_and_port, split_http_url, without_credentials

MAX_ANSWER_BYTES = 64 * 1024 * 1024


class HttpError(InsightError):
    """The server cannot be reached, took too long, or does not speak HTTP."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} does not answer: {reason}.")
        self.reason = reason
        """What happened, without the address."""


class Reply(NamedTuple):
    """The server's response."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    reason: str = ""

    @property
    def is_success(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.status < 300

    @property
    def sentence(self) -> str:
        """The body as one short line, for messages."""
        return " ".join(self.body.decode("utf-8", "replace").split())[:300] or self.reason


class Connection:
    """A keep-alive connection to one server; for one thread at a time.

    Args:
        url: The server, with a path that every request's path is appended to.
        token: The access token.
        headers: Sent with each request.
        timeout_s: How long to wait for the server to send or accept data.
        trust: The certificate to trust instead of the system's, regardless of its host name.
        proxies: Whether the usual proxy variables apply (`HTTPS_PROXY`, `NO_PROXY`); never to loopback addresses.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        trust: str | None = None,
        proxies: bool = False,
    ) -> None:
        parts = split_http_url(url)
        self.address = without_credentials(url)
        if parts is None:
            raise ConfigError(f"{self.address!r} is not an http or https URL with a host.")
        self._path = parts.path
        self._headers = {**(headers or {}), **bearer(token)}
        proxy = proxy_of(parts) if proxies else None
        host, port = parts.hostname or "", parts.port
        at_host, at_port = (proxy.hostname or "", proxy.port or 80) if proxy else (host, port)
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=trust)
            context.check_hostname = trust is None
            self._connection = http.client.HTTPSConnection(at_host, at_port, timeout=timeout_s, context=context)
            if proxy:
                self._connection.set_tunnel(host, port, headers=proxy_headers(proxy))
        else:
            self._connection = http.client.HTTPConnection(at_host, at_port, timeout=timeout_s)
            if proxy:
                self._path = f"http://{host_and_port(host, port or 80)}{self._path or '/'}"
                self._headers |= proxy_headers(proxy)

    @contextmanager
    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and yield the response, to be read as a stream.

        Raises:
            HttpError: the server cannot be reached, or closes the connection.
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
            raise HttpError(self.address, reason) from error
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
        """Send a request and return the response, with up to `max_bytes` of its body.

        Raises:
            HttpError: the server cannot be reached.
        """
        with self.ask(method, path, body, headers) as response:
            return Reply(response.status, response.read(max_bytes), dict(response.headers.items()), response.reason)

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        self._connection.close()


def request(method: str, url: str, body: Any = None, *, headers: Mapping[str, str] | None = None, **how: Any) -> Reply:
    """Send one request over a new connection; `how` is passed to `Connection`.

    Raises:
        HttpError: the server cannot be reached.
        ConfigError: `url` is not an http or https URL.
    """
    parts = split_http_url(url)
    query = f"?{parts.query}" if parts is not None and parts.query else ""
    connection = Connection(url, **how)
    try:
        return connection.request(method, query, body, headers)
    finally:
        connection.close()
