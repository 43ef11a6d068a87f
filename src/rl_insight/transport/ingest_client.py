"""A keep-alive connection to a server route that another thread can interrupt."""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import os
import socket
import ssl
import threading
import time
from typing import Any
from urllib.parse import SplitResult

import msgspec

from rl_insight.errors import ConfigError
from rl_insight.proxies import proxy_headers, proxy_of
from rl_insight.urls import bearer, host_and_port, is_loopback, split_http_url, without_credentials

INGEST_PATH = "/api/v1/ingest"
CONTENT_TYPE = "application/vnd.rl-insight.frames"
TARGETS_PATH = "/api/v1/targets"
MAX_ANSWER_BYTES = 64 * 1024
MAX_RETRY_AFTER_S = 300.0
_ONE_SEND_BYTES = 64 * 1024
"""Up to this size the header and the body of a request are sent together: a larger body is not worth copying."""


class Answer(msgspec.Struct, frozen=True):
    """The server's response to one request."""

    status: int
    sentence: str = ""
    """The server's message."""
    retry_after_s: float | None = None
    is_receipt: bool = False
    """The body is a JSON object, as the ingest route returns, unlike the page of some other server."""
    stacks_of: tuple[str, ...] = ()
    """Processes whose stacks the server requests."""
    flush_s: float = 0.0
    """The time between batches that the server requests; 0 for any."""


class _WholeRequests(http.client.HTTPConnection):
    """Sends the header and the body of a small request together: one packet, which wakes the server once."""

    _parts: list[bytes] | None = None

    def request(self, *arguments: Any, **options: Any) -> None:
        """Build a request, then send it."""
        parts = self._parts = []
        try:
            super().request(*arguments, **options)
        finally:
            self._parts = None
        for part in [b"".join(parts)] if sum(map(len, parts)) <= _ONE_SEND_BYTES else parts:
            self.send(part)

    def send(self, data: Any) -> None:
        """Send bytes, or collect them while a request is being built."""
        if self._parts is None:
            super().send(data)
        else:
            self._parts.append(data)


class _WholeSecureRequests(_WholeRequests, http.client.HTTPSConnection):
    """The same over TLS."""


class IngestClient:
    """Posts frames to ``<url>/api/v1/ingest``, or JSON to another route.

    `post` and `close` belong to one thread; any other thread may call `interrupt`, and a forked child `abandon`.
    The usual proxy variables apply (`HTTPS_PROXY`, `NO_PROXY`), except for loopback addresses.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        timeout_s: float,
        ca_file: str | None = None,
        path: str = INGEST_PATH,
    ) -> None:
        self._url = _checked(url)
        self._path = path
        self._timeout_s = timeout_s
        self._context = ssl.create_default_context(cafile=ca_file) if self._url.scheme == "https" else None
        if self._context is not None:
            self._context.check_hostname = ca_file is None
        content_type = CONTENT_TYPE if path == INGEST_PATH else "application/json"
        self._headers = {"Content-Type": content_type, "Accept": "application/json", **bearer(token)}
        self._guard = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._target = ""
        self._candidate: socket.socket | None = None
        self._interrupted = False

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine."""
        return is_loopback(self._url.hostname or "")

    def post(self, body: bytes, encoding: str | None = None) -> Answer:
        """Send one request and read the response.

        Raises:
            OSError: the server cannot be reached, or took longer than the timeout.
            http.client.HTTPException: the peer does not speak HTTP, or broke off the response.
        """
        reused = self._connection is not None
        try:
            return self._post_once(body, encoding)
        except (ConnectionError, http.client.BadStatusLine):
            # Servers close idle connections at any time; only a new one shows whether the server is down.
            if not reused or self._interrupted:
                raise
            return self._post_once(body, encoding)

    def interrupt(self) -> None:
        """Make a `post` in progress on another thread, and every later one, fail at once."""
        with self._guard:
            self._interrupted = True
            for opened in self._sockets():
                with contextlib.suppress(OSError):
                    # Not the SSL socket's own method, which would modify it while another thread reads from it.
                    socket.socket.shutdown(opened, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next `post` opens a new one."""
        with self._guard:
            connection, self._connection = self._connection, None
            self._candidate = None
            if connection is not None:
                connection.close()

    def abandon(self) -> None:
        """Close the descriptor that a forked child inherited; nothing is sent on the parent's connection."""
        self._guard = threading.Lock()
        self._interrupted = True
        inherited = self._sockets()
        self._connection = self._candidate = None
        for opened in inherited:
            if opened.fileno() >= 0:
                os.close(opened.detach())

    def _sockets(self) -> list[socket.socket]:
        """Return the sockets in use: the one being connected, and the connection's own, which TLS may wrap."""
        connected: socket.socket | None = None if self._connection is None else self._connection.sock
        return [opened for opened in (self._candidate, connected) if opened is not None]

    def _post_once(self, body: bytes, encoding: str | None) -> Answer:
        connection = self._connection
        if connection is None:
            connection = self._new_connection()
            with self._guard:
                self._connection = connection
        headers = self._headers | ({"Content-Encoding": encoding} if encoding else {})
        try:
            self._request(connection, body, headers)
            response = connection.getresponse()
            content = response.read(MAX_ANSWER_BYTES)
            reusable = response.isclosed() and not response.will_close
        except BaseException:
            self.close()
            raise
        if not reusable:
            self.close()
        return _answer(response, content)

    def _request(self, connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str]) -> None:
        try:
            connection.request("POST", self._target, body=body, headers=headers)
        except (BrokenPipeError, ConnectionResetError):
            # A server may reject a request before reading all of it; its response can still be read.
            if connection.sock is None:
                raise

    def _new_connection(self) -> http.client.HTTPConnection:
        url = self._url
        host, port = url.hostname or "", url.port or (443 if self._context else 80)
        self._target = url.path.rstrip("/") + self._path
        proxy = proxy_of(url)
        at_host, at_port = (proxy.hostname or "", proxy.port or 80) if proxy else (host, port)
        connection: http.client.HTTPConnection
        if self._context is not None:
            connection = _WholeSecureRequests(at_host, at_port, timeout=self._timeout_s, context=self._context)
            if proxy:
                connection.set_tunnel(host, port, headers=proxy_headers(proxy))
        else:
            connection = _WholeRequests(at_host, at_port, timeout=self._timeout_s)
            if proxy:
                self._target = f"http://{host_and_port(host, port)}{self._target}"
                self._headers |= proxy_headers(proxy)
        # http.client's hook for creating a socket; ours can be interrupted while it connects.
        connection._create_connection = self._connect  # type: ignore[attr-defined]
        return connection

    def _connect(self, address: tuple[str, int], timeout_s: float, _source: Any) -> socket.socket:
        problem: OSError = OSError(f"{address[0]} has no address")
        for family, kind, protocol, _name, target in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            candidate = socket.socket(family, kind, protocol)
            try:
                with self._guard:
                    if self._interrupted:
                        raise ConnectionAbortedError("the transport was closed")
                    self._candidate = candidate
                candidate.settimeout(timeout_s)
                candidate.connect(target)
            except OSError as error:
                problem = error
                with self._guard:
                    self._candidate = None
                    candidate.close()
            else:
                return candidate
        raise problem


def _checked(url: str) -> SplitResult:
    parts = split_http_url(url)
    if parts is None:
        raise ConfigError(
            f"server.url {without_credentials(url)!r} is not the address of a server. "
            "Write it like http://127.0.0.1:18080 or https://insight.example.org."
        )
    return parts


def _answer(response: http.client.HTTPResponse, content: bytes) -> Answer:
    try:
        decoded = msgspec.json.decode(content)
    except msgspec.DecodeError:
        decoded = None
    is_object = isinstance(decoded, dict)
    said = next((decoded[key] for key in ("error", "detail", "message") if key in decoded), "") if is_object else ""
    if not isinstance(said, str) or not said:
        said = content.decode("utf-8", "replace").strip()
    return Answer(
        status=response.status,
        sentence=" ".join(said.split())[:300] or response.reason,
        retry_after_s=retry_after(response.headers.get("Retry-After")),
        is_receipt=is_object,
        stacks_of=_stacks_of(decoded) if is_object else (),
        flush_s=_flush_s(decoded) if is_object else 0.0,
    )


def _flush_s(receipt: dict[str, Any]) -> float:
    asked = receipt.get("flush_s")
    return float(asked) if isinstance(asked, (int, float)) and 0.0 <= asked < MAX_RETRY_AFTER_S else 0.0


def _stacks_of(receipt: dict[str, Any]) -> tuple[str, ...]:
    asked = receipt.get("stacks")
    return tuple(one for one in asked if isinstance(one, str)) if isinstance(asked, list) else ()


def retry_after(value: str | None) -> float | None:
    """Parse a Retry-After header, which contains seconds or a date."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S) if seconds == seconds else None  # noqa: PLR0124 not a number
