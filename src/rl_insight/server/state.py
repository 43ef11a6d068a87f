"""What a running server leaves in its data directory, so that others find it and no second one starts there."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil

from rl_insight.config.paths import STATE_FILE, ServerState
from rl_insight.errors import InsightError

LOCK_FILE = "server.lock"
LOG_FILE = "server.log"
_SAME_START_S = 2.0


class ServerStartError(InsightError):
    """The server cannot start; the message says why and what to do."""


class ServerRecord(ServerState, frozen=True, omit_defaults=True, kw_only=True):
    """The whole state file; clients read only the part that `ServerState` names."""

    process_started_s: float = 0.0
    """When the process began, which tells it from a later one with the same pid."""
    started_ns: int = 0
    version: str = ""
    data_dir: str = ""
    otlp_http_url: str | None = None
    otlp_grpc_address: str | None = None
    diagnosis_rules: dict[str, Any] = msgspec.field(default_factory=dict)
    """`diagnosis.rules`, so that `rl-insight diagnose` judges as the server does."""


def read_record(directory: Path) -> ServerRecord | None:
    """Return the record of the server that runs on a data directory; None when there is none."""
    try:
        record = msgspec.json.decode((directory / STATE_FILE).read_bytes(), type=ServerRecord)
    except (OSError, msgspec.DecodeError):
        return None
    return record if is_running(record) else None


def is_running(record: ServerRecord) -> bool:
    """Return whether the process that wrote a record still lives."""
    try:
        process = psutil.Process(record.pid)
        is_same = abs(process.create_time() - record.process_started_s) < _SAME_START_S
        return (is_same or not record.process_started_s) and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):
        return False


class DataDirectory:
    """A data directory that belongs to this server alone until `close`.

    Raises:
        ServerStartError: it cannot be used, or another server has it.
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
        who = f"the server with pid {record.pid} at {record.url}" if record else "another server that is starting"
        return (
            f"the data directory {self.path} is in use by {who}. "
            "Stop that one with `rl-insight server stop`, or choose another with --data-dir."
        )

    def write(self, record: ServerRecord) -> None:
        """Leave the record; only the owner can read it, because it holds the token."""
        partial = self.path / f".{STATE_FILE}.partial"
        try:
            partial.unlink(missing_ok=True)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(msgspec.json.encode(record) + b"\n")
            partial.replace(self.path / STATE_FILE)
        except OSError as error:
            raise ServerStartError(_unusable(self.path, error)) from error

    def close(self) -> None:
        """Remove the record and give the directory free; idempotent."""
        if self._lock < 0:
            return
        (self.path / STATE_FILE).unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = -1


def new_record(
    url: str,
    *,
    token: str | None,
    data_dir: Path,
    otlp_http_url: str | None,
    otlp_grpc_address: str | None,
    tls_cert: str | None,
    version: str,
    diagnosis_rules: dict[str, Any],
) -> ServerRecord:
    """Return the record of this process."""
    return ServerRecord(
        pid=os.getpid(),
        url=url,
        token=token,
        process_started_s=psutil.Process().create_time(),
        started_ns=time.time_ns(),
        version=version,
        data_dir=str(data_dir),
        otlp_http_url=otlp_http_url,
        otlp_grpc_address=otlp_grpc_address,
        tls_cert=tls_cert,
        diagnosis_rules=diagnosis_rules,
    )


def _unusable(path: Path, error: OSError) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"cannot write to the data directory {path}: the disk is full. Make room, or choose another --data-dir."
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return f"cannot use the data directory {path}: permission denied. Choose one of your own with --data-dir."
    return f"cannot use the data directory {path}: {error.strerror or error}. Choose another with --data-dir."
