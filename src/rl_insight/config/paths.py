"""RL-Insight's folders on this machine, and how a process finds the local server."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

DATA_DIR_VARIABLE = "RL_INSIGHT_DATA_DIR"
STATE_FILE = "server.json"


_SAME_START_S = 2.0
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class Server(msgspec.Struct, frozen=True, omit_defaults=True):
    """A server and how to connect to it."""

    url: str
    token: str | None = None
    tls_cert: str | None = None
    """The certificate to trust instead of the system's: that of a server on this machine."""


class ServerState(Server, frozen=True, omit_defaults=True, kw_only=True):
    """The state file of a running server in its data directory, readable only by its owner."""

    pid: int
    process_started_s: float = 0.0
    """Distinguishes the process from a later one with the same pid."""


State = TypeVar("State", bound=ServerState)


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


def file_name(process_id: str) -> str:
    """Return a process id as a plain file name: no separators, never hidden, never empty.

    >>> file_name("node7-4711-9f3a2c1d"), file_name("../a b")
    ('node7-4711-9f3a2c1d', '_._a_b')
    """
    name = _UNSAFE.sub("_", process_id) or "_"
    return "_" + name[1:] if name.startswith(".") else name


def data_dir() -> Path:
    """Return the server's data directory: `RL_INSIGHT_DATA_DIR`, or `~/.rl-insight`."""
    return Path(os.environ.get(DATA_DIR_VARIABLE) or "~/.rl-insight").expanduser()


def find_server(url: str | None, token: str | None, directory: Path | None = None) -> Server | None:
    """Return the server at a URL or, without one, the server on this machine; None if there is neither.

    A server on this machine saves its token and certificate, so they are known whether or not its URL is given.
    """
    local = find_local_server(directory)
    if url is not None and (local is None or local.url.rstrip("/") != url.rstrip("/")):
        return Server(url, token)
    if local is None:
        return None
    certificate = local.tls_cert if local.tls_cert and os.access(local.tls_cert, os.R_OK) else None
    return Server(local.url if url is None else url, token or local.token, certificate)


def find_local_server(directory: Path | None = None) -> ServerState | None:
    """Return the server that runs on a data directory of this machine (by default this user's), if any."""
    return read_state(directory or data_dir(), ServerState)


def read_state(directory: Path, kind: type[State]) -> State | None:
    """Return the state file of the server that runs on a data directory; None if there is none."""
    try:
        state = msgspec.json.decode((directory / STATE_FILE).read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, RuntimeError):
        return None
    return state if is_running(state) else None


def is_running(state: ServerState) -> bool:
    """Return whether the process that wrote a state file is still alive."""
    import psutil  # not at the top: only where a state file was found

    try:
        process = psutil.Process(state.pid)
        is_same = abs(process.create_time() - state.process_started_s) < _SAME_START_S
        return (is_same or not state.process_started_s) and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):
        return False
