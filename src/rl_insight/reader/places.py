"""Locations of runs: a server, or a data directory without one."""

from __future__ import annotations

import os
from pathlib import Path

from rl_insight.config.loading import TOKEN_VARIABLE, environment_config
from rl_insight.config.paths import Server, find_server
from rl_insight.config.paths import data_dir as default_data_dir
from rl_insight.urls import clean_token, without_credentials

Place = Server | Path
"""A server, or a data directory."""


def find_place(server: str | None = None, token: str | None = None, data_dir: str | Path | None = None) -> Place:
    """Return where to look for runs.

    In order of precedence: `server`; the server that runs on `data_dir`, or `data_dir` itself; `RL_INSIGHT_SERVER_URL`;
    `server.url` in the file named by `RL_INSIGHT_CONFIG`; the server that runs on the default data directory, or that
    directory. `token` defaults to `RL_INSIGHT_TOKEN`, or `server.token` in the file.
    """
    directory = default_data_dir() if data_dir is None else Path(data_dir).expanduser()
    if server:
        token = token or os.environ.get(TOKEN_VARIABLE)
    elif data_dir is None:
        configured = environment_config().server
        server, token = configured.url, token or (configured.token if configured.url else None)
    url = server.rstrip("/") if server else None
    return find_server(url, clean_token(token, TOKEN_VARIABLE), directory) or directory


def describe(place: Place) -> str:
    """Return a place for messages: `on http://node7:18080`, `in /home/me/.rl-insight`."""
    return f"on {without_credentials(place.url)}" if isinstance(place, Server) else f"in {place}"
