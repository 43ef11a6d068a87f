"""The state that a running stack keeps in its directory, so that other processes can see and stop it."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

import msgspec
import psutil

from rl_insight.files import replace_file
from rl_insight.stack.errors import StackError

STATE_FILE = "state.json"
LOCK_FILE = "lock"


class ServiceState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One service when the state was last written."""

    name: str
    title: str
    state: str
    """`starting`, `running`, `restarting` or `stopped`."""
    url: str
    version: str = ""
    log: str = ""
    pid: int | None = None
    """Also the id of its process group; None in a container, and while it is down."""
    created: float = 0.0
    """When the process was created: its pid alone may belong to another process by now."""
    restarts: int = 0
    last_exit: str = ""
    """How it last ended on its own."""


class StackState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stack that was started and not stopped."""

    mode: str
    owner_pid: int
    """The process that supervises it."""
    owner_created: float
    project: str = ""
    """The name of the Compose project, with containers."""
    services: list[ServiceState] = []


def read_state(root: Path) -> StackState | None:
    """Return the state of a stack; None if none was started."""
    try:
        return msgspec.json.decode((root / STATE_FILE).read_bytes(), type=StackState)
    except (OSError, msgspec.DecodeError):
        return None


def write_state(root: Path, state: StackState) -> None:
    """Replace the state atomically."""
    replace_file(root / STATE_FILE, msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")


def remove_state(root: Path) -> None:
    """Delete the state, which makes the supervisor of the stack end it."""
    (root / STATE_FILE).unlink(missing_ok=True)


def created_at(pid: int) -> float:
    """Return when a process was created; 0 if it does not exist."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return 0.0


def is_alive(pid: int | None, created: float) -> bool:
    """Return whether the process that had this pid is still running."""
    if pid is None:
        return False
    try:
        process = psutil.Process(pid)
        return bool(abs(process.create_time() - created) < 1.0 and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def take_lock(root: Path) -> IO[bytes]:
    """Acquire the lock for running a stack in this directory; closing the returned file releases it.

    Raises:
        StackError: another process holds it.
    """
    root.mkdir(parents=True, exist_ok=True)
    stream = (root / LOCK_FILE).open("ab")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        stream.close()
        raise StackError(
            f"another process runs the stack in {root}: stop it with `rl-insight server stop`, "
            "or use another data directory."
        ) from error
    return stream
