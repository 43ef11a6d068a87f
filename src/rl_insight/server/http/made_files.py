"""Files that are written for one request and sent: traces, exports, reports, run files. None is left on disk."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fastapi import HTTPException
from fastapi.responses import StreamingResponse

from rl_insight.exchange.errors import ExchangeError
from rl_insight.store.errors import StoreError, StoreFullError

if TYPE_CHECKING:
    from rl_insight.server.services import Services

_CHUNK_BYTES = 256 * 1024
_SPAN_BYTES = 1_000
"""Disk space per span, a generous estimate."""
_PREFIX = ".transfer-"
# Each of these keeps a core busy: more than two at once would slow down everything else.
_slots = threading.BoundedSemaphore(2)


@contextmanager
def work_slot() -> Iterator[None]:
    """Hold one of the two slots for work that keeps a core busy; without a free one, answer 429."""
    if not _slots.acquire(blocking=False):
        raise HTTPException(
            429,
            "other traces, exports or reports are being written: try again in a few seconds.",
            headers={"Retry-After": "3"},
        )
    try:
        yield
    finally:
        _slots.release()


def check_room(services: Services, spans: int) -> None:
    """Check that the disk has room for a file with this many spans."""
    free = shutil.disk_usage(services.runs.path.parent).free
    if free < services.settings.store.min_free_bytes + spans * _SPAN_BYTES:
        raise StoreFullError("the server's disk is too full to write this: choose a shorter time or a step.")


def make_file(services: Services, name: str, write: Callable[[Path], object]) -> BinaryIO:
    """Write a file with `write` and return it open; it is already unlinked, so nothing is left behind.

    The store is not kept open while the file is sent, which may be slow.

    Raises:
        StoreError: it could not be written; the message does not name a path of the server.
    """
    with work_directory(services) as directory:
        try:
            write(directory / name)
            return (directory / name).open("rb")
        except ExchangeError as error:
            raise StoreError(str(error).replace(f"{directory}/", "")) from error


@contextmanager
def work_directory(services: Services) -> Iterator[Path]:
    """Lend a directory for one request, on the disk where the runs are."""
    place = services.runs.path.parent
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=place, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def remove_leftovers(data_dir: Path) -> None:
    """Remove the directories of requests that a server on this data directory did not finish because it was killed."""
    for path in data_dir.glob(f"{_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def attachment(
    stream: BinaryIO, name: str, media_type: str, headers: Mapping[str, str] | None = None
) -> StreamingResponse:
    """Return the response that sends a file and closes it."""
    described = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Content-Length": str(os.fstat(stream.fileno()).st_size),
        **(headers or {}),
    }
    return StreamingResponse(_chunks(stream), media_type=media_type, headers=described)


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    with stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk
