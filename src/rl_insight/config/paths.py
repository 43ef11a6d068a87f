"""RL-Insight's folders on this machine, and how a process finds the local server."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

DATA_DIR_VARIABLE = "RL_INSIGHT_DATA_DIR"
STATE_FILE = "server.json"


class ServerState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state file of a running server in its data directory, readable only by its owner."""

    pid: int
    url: str
    token: str | None = None
    tls_cert: str | None = None
    """Its certificate, which processes on this machine trust."""


def user_folder() -> Path | None:
    """Return this user's folder in the temporary directory; None if it belongs to another user."""
    home = Path(tempfile.gettempdir()) / f"rl-insight-{os.geteuid()}"
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        is_private = not home.is_symlink() and home.stat().st_uid == os.geteuid()
    except OSError:
        # The disk fails for now; later writes go to subfolders that only this user can read.
        is_private = True
    return home if is_private else None


def data_dir() -> Path:
    """Return the server's data directory: `RL_INSIGHT_DATA_DIR`, or `~/.rl-insight`."""
    return Path(os.environ.get(DATA_DIR_VARIABLE) or "~/.rl-insight").expanduser()


def server_of(url: str | None, token: str | None) -> tuple[str | None, str | None]:
    """Return the URL and token of the configured server, or of the local one; (None, None) if there is neither."""
    if url:
        return url, token
    local = find_local_server()
    return (None, None) if local is None else (local.url, token or local.token)


def find_local_server(directory: Path | None = None) -> ServerState | None:
    """Return the server that runs on this machine; None if there is none."""
    try:
        raw = ((directory or data_dir()) / STATE_FILE).read_bytes()
        state = msgspec.json.decode(raw, type=ServerState)
    except (OSError, msgspec.DecodeError, RuntimeError):
        return None
    try:
        os.kill(state.pid, 0)
    except PermissionError:  # it is running as another user
        return state
    except (OSError, OverflowError):
        return None
    return state
