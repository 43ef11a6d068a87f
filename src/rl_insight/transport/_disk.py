"""Files and folder locks for the transports that write to disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Final

SUFFIX = ".rli"
"""The extension of every file of frames: offline files and spools are read the same way."""

CLOSE_TIMEOUT_S = 2.0
"""How long closing waits for an unresponsive disk."""

_LOCK_NAME: Final = "lock"
_PAUSE_S: Final = 0.01


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, in one system call unless the operating system makes a partial write."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])


class FolderLock:
    """A lock on a folder (`flock` on a file in it), released when the process ends for any reason."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.descriptor = -1
        """Descriptor of the lock file; -1 while the lock is not held."""

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self.descriptor >= 0

    def create(self, attempts: int) -> None:
        """Create and lock the folder; between attempts another process may finish removing a folder of that name.

        Raises:
            OSError: it cannot be created, or another process holds the lock.
        """
        for attempt in range(attempts):
            if attempt:
                time.sleep(_PAUSE_S)
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                if self.take(os.O_CREAT):
                    return
        raise BlockingIOError(f"{self.folder} is in use by another process")

    def take(self, flags: int = 0) -> bool:
        """Lock the folder; False if another process holds the lock.

        Raises:
            OSError: there is no lock file, or it cannot be used.
        """
        path = self.folder / _LOCK_NAME
        descriptor = os.open(path, os.O_RDWR | flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The lock file may have been removed between opening and locking it: then this lock guards nothing.
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                self.descriptor = descriptor
        except BlockingIOError:
            pass
        finally:
            if not self.is_held:
                os.close(descriptor)
        return self.is_held

    def remove_folder(self) -> None:
        """Remove an empty folder; the lock is held until then, so that no other process starts using it."""
        if self.is_held:
            with contextlib.suppress(OSError):
                (self.folder / _LOCK_NAME).unlink()
                self.folder.rmdir()

    def release(self) -> None:
        """Release the lock; idempotent. In a forked child, the parent keeps it: the lock belongs to the open file."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)
