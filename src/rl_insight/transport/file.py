"""Batches in local files, for runs without a server: each process writes its own, `read_batches` reads them back."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rl_insight.backoff import Backoff
from rl_insight.config.paths import file_name
from rl_insight.errors import SchemaError
from rl_insight.schema import Batch, decode, frame, read_frames
from rl_insight.transport._disk import CLOSE_TIMEOUT_S, SUFFIX, write_all
from rl_insight.transport.base import Transport

logger = logging.getLogger("rl_insight")

ProblemHandler = Callable[[Path, SchemaError], None]
"""Called as ``on_problem(path, error)`` for each truncated tail and each unreadable batch."""


class FileTransport(Transport):
    """Appends batches to ``<process_id>.<number>.rli`` in a directory, one series of files per process.

    A batch is one frame (see `schema.framing`), appended in one write: a killed process leaves at most one truncated
    frame, at the end of its last file. A new file is started when the current one would exceed `rotate_bytes`. If a
    write fails, batches are counted as lost, and opening is retried later.

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> transport = FileTransport(directory, "node7-4711-9f3a2c1d")
    >>> transport.send(b"...")
    >>> [path.name for path in Path(directory).iterdir()]
    ['node7-4711-9f3a2c1d.000001.rli']
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        process_id: str,
        rotate_bytes: int = 64 * 1024 * 1024,
        *,
        retry_initial_s: float = 1.0,
        retry_max_s: float = 60.0,
    ) -> None:
        self._directory = Path(directory)
        self._stem = file_name(process_id)
        self._rotate_bytes = rotate_bytes
        self._backoff = Backoff(retry_initial_s, retry_max_s)
        self._lock = threading.Lock()
        self._descriptor = -1
        self._path: Path | None = None
        self._number = 0
        self._size = 0
        self._retry_at = 0.0
        self._error: str | None = None
        self._written = self._written_bytes = self._lost = 0
        self._closed = False

    def send(self, payload: bytes) -> None:
        """Append one batch."""
        with self._lock:
            reason = self._append(frame(payload))
            if reason is not None:
                self._lost += 1
        if reason is not None:
            self.on_loss("batches", reason, 1)

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002 batches are written immediately
        """Return whether the disk accepts batches; written ones survive this process."""
        return self._error is None

    def close(self) -> None:
        """Close the file; if the disk is unresponsive, the operating system does so when the process ends."""
        self._closed = True
        if self._lock.acquire(timeout=CLOSE_TIMEOUT_S):
            self._close_file()
            self._lock.release()

    def abandon(self) -> None:
        """Close the inherited descriptor; the parent keeps writing through its own."""
        self._closed = True
        self._lock = threading.Lock()
        self._close_file()

    def get_status(self) -> dict[str, Any]:
        """Return the written batches, their location, and the disk error, if any."""
        return {
            "backend": "file",
            "path": str(self._path or self._directory),
            "delivered_batches": self._written,
            "delivered_bytes": self._written_bytes,
            "lost_batches": self._lost,
            "last_error": self._error,
        }

    def _append(self, data: bytes) -> str | None:
        """Append a frame; return the loss reason if it failed."""
        if self._closed:
            return "closed"
        if self._error is not None and time.monotonic() < self._retry_at:
            return "disk"
        try:
            self._append_or_raise(data)
        except OSError as error:
            self._fail(error)
            return "disk"
        if self._error is not None:
            logger.info("RL-Insight is writing to %s again.", self._path)
            self._error = None
            self._backoff.reset()
        self._written += 1
        self._written_bytes += len(data)
        return None

    def _append_or_raise(self, data: bytes) -> None:
        if self._descriptor >= 0 and self._size and self._size + len(data) > self._rotate_bytes:
            self._close_file()
        if self._descriptor < 0:
            self._open_next()
        try:
            write_all(self._descriptor, data)
        except OSError:
            # A partial frame would hide all later ones from readers: truncate it, and start a new file next time.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)

    def _open_next(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        while self._descriptor < 0:
            path = self._directory / f"{self._stem}.{self._number + 1:06d}{SUFFIX}"
            with contextlib.suppress(FileExistsError):
                self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
            self._number += 1
        self._path, self._size = path, 0

    def _fail(self, error: OSError) -> None:
        if self._error is None:
            logger.warning(
                "RL-Insight cannot write to %s: %s. Batches are lost until the disk recovers; free some space "
                "or set file.directory to a writable folder.",
                self._directory,
                error,
            )
        self._error = str(error)
        self._close_file()
        self._retry_at = time.monotonic() + self._backoff.next_s()

    def _close_file(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        with contextlib.suppress(OSError):
            os.close(descriptor)


def read_batches(path: str | os.PathLike[str], *, on_problem: ProblemHandler | None = None) -> Iterator[Batch]:
    """Yield the batches of one file, or of every ``.rli`` file below a directory, process by process.

    Unreadable data is skipped: `on_problem` is called for each truncated tail and each unreadable batch. Without a
    handler they are logged as warnings.

    >>> problems = []
    >>> list(read_batches("/dev/null", on_problem=lambda path, error: problems.append(path)))
    []
    """
    handler = on_problem or _log_problem
    root = Path(path)
    files = sorted(root.rglob(f"*{SUFFIX}")) if root.is_dir() else [root]
    for file in files:
        yield from _read_file(file, handler)


def _read_file(path: Path, on_problem: ProblemHandler) -> Iterator[Batch]:
    with path.open("rb") as stream:
        frames = read_frames(stream)
        while True:
            try:
                payload = next(frames, None)
            except SchemaError as error:
                on_problem(path, error)
                return
            if payload is None:
                return
            try:
                batch = decode(payload)
            except SchemaError as error:
                on_problem(path, error)
            else:
                yield batch


def _log_problem(path: Path, error: SchemaError) -> None:
    logger.warning("%s is partly unreadable: %s Using the rest.", path, error)
