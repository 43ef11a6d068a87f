"""The state file and lock in a data directory: clients find the server, and no second one starts there."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import msgspec

from rl_insight.config.paths import STATE_FILE, ServerState, read_state
from rl_insight.errors import InsightError
from rl_insight.files import replace_file

LOCK_FILE = "server.lock"
LOG_FILE = "server.log"


class ServerStartError(InsightError):
    """The server cannot start."""


class ServerRecord(ServerState, frozen=True, omit_defaults=True, kw_only=True):
    """The full state file; clients read only the fields of `ServerState`."""

    started_ns: int = 0
    version: str = ""
    data_dir: str = ""
    otlp_http_url: str | None = None
    otlp_grpc_address: str | None = None
    diagnosis_rules: dict[str, Any] = msgspec.field(default_factory=dict)
    """`diagnosis.rules`, so that `rl-insight diagnose` uses the server's thresholds."""


def read_record(directory: Path) -> ServerRecord | None:
    """Return the record of the server that runs on a data directory, if any."""
    return read_state(directory, ServerRecord)


class DataDirectory:
    """A data directory that this server holds exclusively until `close`.

    Raises:
        ServerStartError: it cannot be used, or another server holds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ServerStartError(_unusable(path, error)) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                raise ServerStartError(self._taken()) from error
            raise ServerStartError(_unusable(path, error)) from error

    def _taken(self) -> str:
        record = read_record(self.path)
        who = f"the server with pid {record.pid} at {record.url}" if record else "a server that is starting"
        return (
            f"the data directory {self.path} is in use by {who}. "
            "Stop that one with `rl-insight server stop`, or choose another with --data-dir."
        )

    def write(self, record: ServerRecord) -> None:
        """Write the state file, readable by its owner only because it contains the token."""
        try:
            replace_file(self.path / STATE_FILE, msgspec.json.encode(record) + b"\n", mode=0o600)
        except OSError as error:
            raise ServerStartError(_unusable(self.path, error)) from error

    def close(self) -> None:
        """Remove the state file and release the lock; idempotent."""
        if self._lock < 0:
            return
        (self.path / STATE_FILE).unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = -1


def _unusable(path: Path, error: OSError) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"cannot write to the data directory {path}: the disk is full. Free space, or choose another --data-dir."
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return f"cannot use the data directory {path}: permission denied. Choose a directory you own with --data-dir."
    return f"cannot use the data directory {path}: {error.strerror or error}. Choose another with --data-dir."
