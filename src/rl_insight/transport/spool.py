"""A bounded queue of batches on the local disk that outlives the process that filled it.

A spool is one folder with one file per batch, numbered in order of arrival, and a lock that its live process
holds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rl_insight.errors import SchemaError
from rl_insight.schema import frame, read_frames
from rl_insight.transport._disk import CLOSE_TIMEOUT_S, SUFFIX, FolderLock, write_all

logger = logging.getLogger("rl_insight")

LOCK_ATTEMPTS = 50
DISK_RETRY_S = 5.0
RECENT_MAX_BYTES = 4 * 1024 * 1024


class Waiting(NamedTuple):
    """One batch of a spool, as a frame for a request body."""

    number: int
    frame: bytes


class Peeked(NamedTuple):
    """The oldest batches of a spool, and the number of unreadable files that were dropped."""

    waiting: list[Waiting]
    unreadable: int


class _SpooledBatch(msgspec.Struct):
    size: int
    frame: bytes | None = None
    """Set only if the disk write failed."""
    held: bool = False
    """Being sent: must not be dropped, so that no batch counts as both delivered and lost."""


class Spool:
    """A FIFO queue; above `max_bytes` the oldest batches are dropped, except those being sent.

    A batch is written to a temporary file and renamed, so readers only see complete batches. There is no `fsync`:
    batches survive a process crash, but not a power cut. If the disk fails, batches are kept in up to
    `memory_max_bytes` of memory, and the disk is retried later. With ``directory=None`` only memory is used.

    >>> spool = Spool(None, max_bytes=1_000_000)
    >>> spool.put(b"...")
    0
    >>> [waiting.number for waiting in spool.peek(10, 1_000_000).waiting]
    [1]
    >>> spool.remove([1])
    1
    """

    def __init__(
        self,
        directory: Path | None,
        max_bytes: int,
        *,
        memory_max_bytes: int = 64 * 1024 * 1024,
        disk_retry_s: float = DISK_RETRY_S,
    ) -> None:
        self._folder = None if directory is None else FolderLock(directory)
        self._max_bytes = max_bytes
        self._memory_max_bytes = memory_max_bytes
        self._disk_retry_s = disk_retry_s
        self._guard = threading.Lock()
        self._entries: OrderedDict[int, _SpooledBatch] = OrderedDict()
        self._next_number = 1
        self._bytes = self._memory_bytes = self._memory_batches = 0
        self._disk_retry_at = 0.0
        self._disk_error: str | None = None
        self._recent: dict[int, bytes] = {}
        """Copies of the newest batches on disk, so that a sender that keeps up need not read them back."""
        self._recent_bytes = 0
        self._closed = False
        self._try_disk(LOCK_ATTEMPTS)

    @property
    def directory(self) -> Path | None:
        """The folder; None if only memory is used."""
        return None if self._folder is None else self._folder.folder

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """Bytes queued on disk and in memory."""
        return self._bytes

    def put(self, payload: bytes) -> int:
        """Add a batch; return how many were dropped to make room, including a batch that is too large itself."""
        data = frame(payload)
        if len(data) > self._max_bytes or self._closed:
            return 1
        with self._guard:
            number = self._next_number
            self._next_number += 1
            dropped = self._make_room(len(data))
            if self._write(number, data):
                self._add(number, _SpooledBatch(size=len(data)))
                self._remember(number, data)
                return dropped
            if len(data) > self._memory_max_bytes:
                return dropped + 1
            dropped += self._make_room(len(data), memory_only=True)
            self._add(number, _SpooledBatch(size=len(data), frame=data))
            self._memory_batches += 1
        return dropped

    def peek(self, max_batches: int, max_bytes: int) -> Peeked:
        """Return the oldest batches, at least one if there is any, and hold them until `remove` or `release`."""
        waiting: list[Waiting] = []
        unreadable: list[int] = []
        total = 0
        with self._guard:
            for number, entry in self._entries.items():
                if waiting and (len(waiting) >= max_batches or total + entry.size > max_bytes):
                    break
                data = entry.frame or self._recent.get(number) or self._read(number)
                if data is None:
                    unreadable.append(number)
                    continue
                entry.held = True
                waiting.append(Waiting(number, data))
                total += entry.size
            for number in unreadable:
                self._discard(number)
        return Peeked(waiting, len(unreadable))

    def remove(self, numbers: Iterable[int]) -> int:
        """Delete delivered or rejected batches; return how many still existed."""
        with self._guard:
            return sum(self._discard(number) for number in numbers)

    def release(self, numbers: Iterable[int]) -> None:
        """Release batches that `peek` returned and that stay in the spool."""
        with self._guard:
            for number in numbers:
                if (entry := self._entries.get(number)) is not None:
                    entry.held = False

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
        """Leave the batches for another process; return how many were in memory and could not be saved to disk.

        An empty spool removes its folder. An unresponsive disk (a frozen file system, a dead device) is abandoned
        after `timeout_s`: a daemon thread does the work.
        """
        if self._closed:
            return 0
        dropped: list[int] = []
        closer = threading.Thread(target=lambda: dropped.append(self._close()), name="rl-insight-spool", daemon=True)
        closer.start()
        closer.join(timeout_s)
        if not closer.is_alive():
            return sum(dropped)
        self._closed = True
        logger.warning(
            "RL-Insight abandoned its spool %s: the disk did not respond in %g s. Batches not yet on disk are lost.",
            self.directory,
            timeout_s,
        )
        return sum(entry.frame is not None for entry in list(self._entries.values()))

    def _close(self) -> int:
        with self._guard:
            if self._closed:
                return 0
            dropped = self._save_memory()
            self._closed = True
            if self._folder is not None and not self._entries:
                self._folder.remove_folder()
            self._unlock()
        return dropped

    def abandon(self) -> None:
        """Release the spool in a forked child. Acquires no lock: its holder may not exist here."""
        self._closed = True
        self._guard = threading.Lock()
        self._entries = OrderedDict()
        self._recent = {}
        self._bytes = self._memory_bytes = self._recent_bytes = 0
        self._unlock()

    def get_status(self) -> dict[str, Any]:
        """Return the queued batches, the folder, and the disk error, if any."""
        return {
            "directory": None if self.directory is None else str(self.directory),
            "waiting_batches": len(self._entries),
            "waiting_bytes": self._bytes,
            "memory_bytes": self._memory_bytes,
            "memory_fallback_batches": self._memory_batches,
            "disk_error": self._disk_error,
        }

    def _add(self, number: int, entry: _SpooledBatch) -> None:
        self._entries[number] = entry
        self._bytes += entry.size
        if entry.frame is not None:
            self._memory_bytes += entry.size

    def _remember(self, number: int, data: bytes) -> None:
        self._recent[number] = data
        self._recent_bytes += len(data)
        while self._recent_bytes > RECENT_MAX_BYTES:
            oldest = next(iter(self._recent))
            self._recent_bytes -= len(self._recent.pop(oldest))

    def _discard(self, number: int) -> bool:
        entry = self._entries.pop(number, None)
        if entry is None:
            return False
        self._bytes -= entry.size
        self._recent_bytes -= len(self._recent.pop(number, b""))
        if entry.frame is not None:
            self._memory_bytes -= entry.size
        else:
            with contextlib.suppress(OSError):
                self._path(number).unlink()
        return True

    def _make_room(self, size: int, *, memory_only: bool = False) -> int:
        """Drop the oldest batches that are not being sent until `size` more bytes fit."""
        victims = []
        freed = 0
        used, limit = (self._memory_bytes, self._memory_max_bytes) if memory_only else (self._bytes, self._max_bytes)
        for number, entry in self._entries.items():
            if used - freed + size <= limit:
                break
            if not entry.held and (entry.frame is not None or not memory_only):
                victims.append(number)
                freed += entry.size
        for number in victims:
            self._discard(number)
        return len(victims)

    def _path(self, number: int) -> Path:
        assert self.directory is not None  # noqa: S101 only reached with files
        return self.directory / f"{number:016d}{SUFFIX}"

    def _write(self, number: int, data: bytes) -> bool:
        """Write one batch as a file; False when it has to stay in memory."""
        if not self._try_disk():
            return False
        path = self._path(number)
        temporary = path.with_suffix(".tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                write_all(descriptor, data)
            finally:
                os.close(descriptor)
            temporary.rename(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            self._refused(error)
            return False
        if self._disk_error is not None:
            logger.info("RL-Insight writes undelivered batches to %s again.", self.directory)
            self._disk_error = None
        return True

    def _read(self, number: int) -> bytes | None:
        """Return the frame of a batch; None if the file is missing or damaged (by a power cut, or by cleaning /tmp)."""
        try:
            with self._path(number).open("rb") as stream:
                payload = next(read_frames(stream))
        except (OSError, SchemaError, StopIteration) as error:
            logger.warning("A spooled RL-Insight batch is lost: %s: %r.", self._path(number), error)
            return None
        return frame(payload)

    def _try_disk(self, attempts: int = 1) -> bool:
        """Return whether the folder can be used now; opens it if necessary."""
        if self._folder is None or time.monotonic() < self._disk_retry_at:
            return False
        if self._folder.is_held:
            return True
        try:
            self._folder.create(attempts)
            self._scan()
        except OSError as error:
            self._refused(error)
            return False
        return True

    def _refused(self, error: OSError) -> None:
        if self._disk_error is None:
            logger.warning(
                "RL-Insight cannot write undelivered batches to %s: %s. Up to %d MiB are kept in memory instead; "
                "set http.spool_dir to a writable folder on a local disk.",
                self.directory,
                error,
                self._memory_max_bytes // 2**20,
            )
        self._disk_error = str(error)
        self._disk_retry_at = time.monotonic() + self._disk_retry_s
        if isinstance(error, FileNotFoundError):
            # The folder and its lock are gone: both are created again at the next retry.
            self._unlock()

    def _scan(self) -> None:
        """Take over the files in the folder, oldest first."""
        assert self.directory is not None  # noqa: S101 only reached with a folder
        found: dict[int, int] = {}
        for path in self.directory.iterdir():
            if path.suffix == SUFFIX and path.stem.isdecimal():
                found[int(path.stem)] = path.stat().st_size
            elif path.suffix == ".tmp":
                path.unlink()
        for number in sorted(found):
            if number not in self._entries:
                self._add(number, _SpooledBatch(size=found[number]))
        # Numbers continue after those of batches that an earlier process left in the folder.
        self._next_number = max(self._next_number, max(found, default=0) + 1)

    def _save_memory(self) -> int:
        """Try once more to write batches in memory to disk; return how many could not be."""
        self._disk_retry_at = 0.0
        lost = 0
        for number, entry in list(self._entries.items()):
            if (data := entry.frame) is None:
                continue
            self._discard(number)
            if self._write(number, data):
                self._add(number, _SpooledBatch(size=len(data)))
            else:
                lost += 1
        return lost

    def _unlock(self) -> None:
        if self._folder is not None:
            self._folder.release()


def adopt_orphans(root: Path, max_bytes: int) -> list[Spool]:
    """Take over the spools below `root` whose processes have ended; empty ones are removed at once.

    The caller delivers their batches and closes them. Spools of live processes, including this one, are left alone.
    """
    try:
        folders = sorted(path for path in root.iterdir() if path.is_dir())
    except OSError:
        return []
    adopted = []
    for folder in folders:
        spool = _adopt(folder, max_bytes)
        if spool is not None and len(spool):
            adopted.append(spool)
        elif spool is not None:
            spool.close()
    return adopted


def _adopt(folder: Path, max_bytes: int) -> Spool | None:
    spool, lock = Spool(None, max_bytes), FolderLock(folder)
    try:
        if not lock.take():
            return None
        spool._folder = lock
        spool._scan()
    except OSError as error:
        spool.abandon()
        if isinstance(error, FileNotFoundError):
            # Created and abandoned, or just being created by a process that will retry.
            with contextlib.suppress(OSError):
                folder.rmdir()
        return None
    return spool
