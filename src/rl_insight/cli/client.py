"""How commands talk to a server."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Protocol

from rl_insight.http_client import Connection
from rl_insight.reader.client import ServerClient
from rl_insight.reader.places import Server

_TIMEOUT_S = 10.0


class ServerAddress(Protocol):
    """What has to be known of a server: a `Server`, or the record that a local one leaves."""

    @property
    def url(self) -> str:
        """Its URL."""

    @property
    def token(self) -> str | None:
        """The token it asks for."""

    @property
    def tls_cert(self) -> str | None:
        """The certificate to trust."""


def call(server: ServerAddress, method: str, path: str, content: Any = None, timeout_s: float = 60.0) -> Any:
    """Ask the server something; returns its JSON.

    Raises:
        InsightError: it cannot be reached, or it refused; the message is the server's.
    """
    with closing(ServerClient(_plain(server), timeout_s)) as client:
        return client.call(method, path, content)


def request(
    server: ServerAddress, method: str, path: str, content: Any = None, timeout_s: float = _TIMEOUT_S
) -> tuple[int, bytes]:
    """Send one request; returns the status and the body.

    Raises:
        InsightError: the server cannot be reached.
    """
    with closing(ServerClient(_plain(server), timeout_s)) as client:
        return client.request(method, path, content)


def connect(server: ServerAddress, timeout_s: float = _TIMEOUT_S) -> Connection:
    """Return a connection to the server; of a local one with TLS, exactly its certificate is trusted."""
    return Connection(server.url, token=server.token, timeout_s=timeout_s, trust=server.tls_cert)


def _plain(server: ServerAddress) -> Server:
    return Server(server.url, server.token, server.tls_cert)
