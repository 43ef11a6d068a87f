"""Locations of runs: a server, or a data directory without one."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from rl_insight.config.paths import data_dir as default_data_dir
from rl_insight.urls import clean_token

SERVER_VARIABLE = "RL_INSIGHT_SERVER_URL"
TOKEN_VARIABLE = "RL_INSIGHT_TOKEN"  # noqa: S105 -- the name of a variable


class Server(msgspec.Struct, frozen=True):
    """A server and how to connect to it."""

    url: str
    token: str | None = None
    tls_cert: str | None = None
    """The certificate to trust instead of the system's, for example of a server on this machine."""


Place = Server | Path
"""A server, or a data directory."""


def find_place(server: str | None = None, token: str | None = None, data_dir: str | Path | None = None) -> Place:
    """Return where to look for runs.

    In order of precedence: `server`; the server that runs on `data_dir`, or `data_dir` itself; `RL_INSIGHT_SERVER_URL`;
    the server that runs on the default data directory, or that directory. `token` defaults to `RL_INSIGHT_TOKEN`.
    """
    url = server or (None if data_dir is not None else os.environ.get(SERVER_VARIABLE) or None)
    directory = default_data_dir() if data_dir is None else Path(data_dir).expanduser()
    local = local_server(directory)
    given = clean_token(token or os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE)
    if url is not None:
        url = url.rstrip("/")
        if local is None or local.url.rstrip("/") != url:
            return Server(url, given)
        return Server(url, given or local.token, local.tls_cert)
    if local is not None:
        return msgspec.structs.replace(local, token=given) if token else local
    return directory


def local_server(directory: Path) -> Server | None:
    """Return the server that runs on a data directory of this machine; None if there is none."""
    from rl_insight.server.state import read_record

    record = read_record(directory)
    return None if record is None else Server(record.url, record.token, record.tls_cert)


def describe(place: Place) -> str:
    """Return a place for messages: `on http://node7:18080`, `in /home/me/.rl-insight`."""
    from rl_insight.urls import without_credentials

    return f"on {without_credentials(place.url)}" if isinstance(place, Server) else f"in {place}"
