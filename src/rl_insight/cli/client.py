"""How commands talk to a server."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from rl_insight.reader.client import ServerClient
from rl_insight.reader.places import Server


def call(server: Server, method: str, path: str, content: Any = None, timeout_s: float = 60.0) -> Any:
    """Ask the server something; returns its JSON.

    Raises:
        InsightError: it cannot be reached, or it refused; the message is the server's.
    """
    with closing(ServerClient(server, timeout_s)) as client:
        return client.call(method, path, content)
