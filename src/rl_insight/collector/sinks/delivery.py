"""Delivers requests of sinks: a persistent connection, and bounded retries."""

from __future__ import annotations

import base64
import gzip
import time
from collections.abc import Callable, Mapping
from math import inf
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from rl_insight._version import __version__
from rl_insight.backoff import Backoff
from rl_insight.errors import BatchRefusedError, ConfigError, TransportError
from rl_insight.http_client import Connection, HttpError
from rl_insight.transport.ingest_client import retry_after
from rl_insight.urls import split_http_url, without_credentials

USER_AGENT = f"rl-insight/{__version__}"

_FIRST_PAUSE_S = 0.25
_MAX_PAUSE_S = 5.0
_MAX_ANSWER_BYTES = 64 * 1024

Answer = TypeVar("Answer")


class TryAgainError(TransportError):
    """A request that may succeed later; `retry_after_s` is the delay requested by the receiver."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeliveryRefusedError(BatchRefusedError):
    """A request that the receiver rejected permanently; `status` is the HTTP status, or 0."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class HttpCarrier:
    """Posts requests over a persistent connection; credentials in the URL are sent as basic authentication.

    Args:
        url: where to post to.
        headers: sent with each request.
        timeout_s: the request timeout.
        is_transient: returns whether to retry after an HTTP status.
        gzip_from: bodies of at least this many bytes are compressed.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        is_transient: Callable[[int], bool],
        gzip_from: float = inf,
    ) -> None:
        self._is_transient = is_transient
        self._gzip_from = gzip_from
        parts = urlsplit(url)
        self._query = f"?{parts.query}" if parts.query else ""
        own = {"User-Agent": USER_AGENT, **headers}
        if parts.username is not None:
            credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            own.setdefault("Authorization", "Basic " + base64.b64encode(credentials.encode()).decode())
        self._connection = Connection(url, headers=own, timeout_s=timeout_s)
        self.address = self._connection.address
        """Without credentials, for display."""

    def send(self, body: bytes) -> bytes:
        """Post one body, once, and return the response body.

        Raises:
            TryAgainError: it may succeed later.
            DeliveryRefusedError: it never will.
        """
        headers = None
        if len(body) >= self._gzip_from:
            body, headers = gzip.compress(body, 1), {"Content-Encoding": "gzip"}
        try:
            reply = self._connection.request("POST", self._query, body, headers, _MAX_ANSWER_BYTES)
        except HttpError as error:
            raise TryAgainError(str(error)) from error
        if reply.is_success:
            return reply.body
        if self._is_transient(reply.status):
            raise TryAgainError(
                f"{self.address} answered {reply.status} {reply.sentence}.",
                retry_after_s=retry_after(reply.headers.get("Retry-After")),
            )
        raise DeliveryRefusedError(
            f"{self.address} refused the request: {reply.status} {reply.sentence}.", reply.status
        )

    def close(self) -> None:
        """Close the connection; the next `send` opens another one."""
        self._connection.close()


class Retries:
    """Retries temporary failures with exponential backoff, for a bounded time.

    It runs on the sink's thread; new batches stay in the sink's bounded queue.
    """

    def __init__(self, retry_for_s: float) -> None:
        self._retry_for_s = retry_for_s
        self.requests = 0
        self.retries = 0

    def run(self, attempt: Callable[[], Answer]) -> Answer:
        """Call `attempt` until it succeeds.

        Raises:
            DeliveryRefusedError: the receiver rejected the request.
            TransportError: out of time.
        """
        deadline = time.monotonic() + self._retry_for_s
        backoff = Backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
        while True:
            self.requests += 1
            try:
                return attempt()
            except TryAgainError as error:
                wait_s = max(backoff.next_s(), error.retry_after_s or 0.0)
                if time.monotonic() + wait_s > deadline:
                    raise TransportError(str(error)) from error
            self.retries += 1
            time.sleep(wait_s)


def checked_url(url: str, what: str) -> str:
    """Return the URL if requests can be posted to it.

    Raises:
        ConfigError: it has another scheme, or no host.
    """
    if split_http_url(url) is None:
        raise ConfigError(
            f"{without_credentials(url)!r} cannot be the {what}: it must be an http or https URL with a host."
        )
    return url
