"""A folder that one process has to itself: the lock (`flock`) ends with the process, however that ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Final

_NAME: Final = "lock"
_PAUSE_S: Final = 0.01


class FolderLock:
    """The lock of one folder: a file in it, held open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.descriptor = -1
        """Of the lock file; -1 while the lock is not held."""

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self.descriptor >= 0

    def create(self, attempts: int) -> None:
        """Create and lock the folder; between attempts another process may finish removing one of the same name.

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
        """Lock the folder; False when another process holds the lock.

        Raises:
            OSError: there is no lock file, or it cannot be used.
        """
        path = self.folder / _NAME
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
        """Remove an empty folder; the lock is kept until it is gone, so that no other process moves in meanwhile."""
        if self.is_held:
            with contextlib.suppress(OSError):
                (self.folder / _NAME).unlink()
                self.folder.rmdir()

    def release(self) -> None:
        """Give the lock up; idempotent. In a forked child, the parent keeps it: the lock belongs to the open file."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)
