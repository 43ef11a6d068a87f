"""How sinks hand a request to another system: one kept connection, and retries within a bound."""

from __future__ import annotations

import base64
import http.client
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from rl_insight._version import __version__
from rl_insight.errors import BatchRefusedError, ConfigError, TransportError
from rl_insight.transport._http_client import _retry_after
from rl_insight.urls import without_credentials

USER_AGENT = f"rl-insight/{__version__}"

_FIRST_PAUSE_S = 0.25
_MAX_PAUSE_S = 5.0
_MAX_ANSWER_BYTES = 64 * 1024
_MAX_SENTENCE = 300

Answer = TypeVar("Answer")


class TryAgainError(TransportError):
    """A request that may succeed later; `retry_after_s` is what the receiver asked for."""


class RefusedError(BatchRefusedError):
    """A request that the receiver will never take; `status` is its HTTP status, 0 where it has none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Carrier(Protocol):
    """Takes one request to its receiver, once."""

    address: str
    """The receiver as it may be shown: without credentials."""

    def send(self, body: bytes) -> bytes:
        """Return the receiver's answer.

        Raises:
            TryAgainError: it may succeed later.
            RefusedError: it never will.
        """

    def close(self) -> None:
        """Close the connection; the next `send` opens another one."""


class HttpCarrier:
    """Posts requests to a URL over one kept connection; a user and password in the URL become basic authentication.

    Args:
        url: where to post to.
        headers: sent with each request.
        timeout_s: how long one request may wait for the receiver.
        is_passing: returns for an HTTP status whether the request is worth sending again.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str], timeout_s: float, is_passing: Callable[[int], bool]
    ) -> None:
        self.address = without_credentials(url)
        self._url = urlsplit(url)
        self._target = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        self._headers = {"User-Agent": USER_AGENT, **headers}
        if self._url.username is not None:
            credentials = f"{unquote(self._url.username)}:{unquote(self._url.password or '')}"
            self._headers.setdefault("Authorization", "Basic " + base64.b64encode(credentials.encode()).decode())
        self._timeout_s = timeout_s
        self._is_passing = is_passing
        self._connection: http.client.HTTPConnection | None = None

    def send(self, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
        """Post one body and return the answer's."""
        try:
            connection = self._connect()
            connection.request("POST", self._target, body=body, headers={**self._headers, **(headers or {})})
            response = connection.getresponse()
            answer = response.read(_MAX_ANSWER_BYTES)
            if not response.isclosed():
                self.close()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise TryAgainError(f"{self.address} cannot be reached: {type(error).__name__}: {error}.") from error
        if 200 <= response.status < 300:
            return answer
        sentence = " ".join(answer.decode("utf-8", "replace").split())[:_MAX_SENTENCE] or response.reason
        if self._is_passing(response.status):
            raise TryAgainError(
                f"{self.address} answered {response.status} {sentence}.",
                retry_after_s=_retry_after(response.headers.get("Retry-After")),
            )
        raise RefusedError(f"{self.address} refused the request: {response.status} {sentence}.", response.status)

    def close(self) -> None:
        """Close the connection; the next `send` opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            kind: Callable[..., http.client.HTTPConnection]
            kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(self._url.hostname or "", self._url.port, timeout=self._timeout_s)
        return self._connection


class Retries:
    """Sends a request again while its trouble may pass, with growing pauses, for a bounded time.

    It runs on the sink's own thread. What arrives meanwhile waits in the sink's bounded queue.
    """

    def __init__(self, retry_for_s: float) -> None:
        self._retry_for_s = retry_for_s
        self.requests = 0
        self.retries = 0

    def run(self, attempt: Callable[[], Answer]) -> Answer:
        """Call `attempt` until it succeeds.

        Raises:
            RefusedError: the receiver will never take the request.
            TransportError: the time is up.
        """
        deadline = time.monotonic() + self._retry_for_s
        pause_s = _FIRST_PAUSE_S
        while True:
            self.requests += 1
            try:
                return attempt()
            except TryAgainError as error:
                wait_s = max(pause_s, error.retry_after_s or 0.0)
                if time.monotonic() + wait_s > deadline:
                    raise TransportError(str(error)) from error
            self.retries += 1
            time.sleep(wait_s)
            pause_s = min(pause_s * 2, _MAX_PAUSE_S)


def checked_url(url: str, what: str) -> str:
    """Return a URL that can be posted to.

    Raises:
        ConfigError: it has another scheme, or no host.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(
            f"{without_credentials(url)!r} cannot be the {what}: it must be an http or https URL with a host."
        )
    return url
