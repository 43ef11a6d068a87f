"""Files that are made for one request and sent: traces, exports, reports. Nothing of them is left on the disk."""

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
"""Room on the disk for one span, generously."""
# Each of these keeps a core busy: more than two at once would hold up everything else.
_turns = threading.BoundedSemaphore(2)


@contextmanager
def turn() -> Iterator[None]:
    """Hold one of the two turns for work that keeps a core busy.

    Raises:
        HTTPException: 429, both are taken.
    """
    if not _turns.acquire(blocking=False):
        raise HTTPException(
            429,
            "other traces, exports or reports are being written: try again in a few seconds.",
            headers={"Retry-After": "3"},
        )
    try:
        yield
    finally:
        _turns.release()


def check_room(services: Services, spans: int) -> None:
    """Refuse to write more spans than the disk has room for.

    Raises:
        StoreFullError: there is no room.
    """
    free = shutil.disk_usage(services.runs.path.parent).free
    if free < services.settings.store.min_free_bytes + spans * _SPAN_BYTES:
        raise StoreFullError("there is no room on the server's disk to write this: choose a shorter time or a step.")


def make_file(services: Services, name: str, make: Callable[[Path], Path]) -> BinaryIO:
    """Return a file that `make` writes to a path it is given; it has no name anymore, so nothing is left behind.

    While it is sent, which may be slow, nothing of the store is kept open.

    Raises:
        StoreError: it could not be written; the message names no file of the server.
    """
    with tempfile.TemporaryDirectory(prefix=".transfer-", dir=services.runs.path.parent) as directory:
        try:
            return make(Path(directory) / name).open("rb")
        except ExchangeError as error:
            raise StoreError(str(error).replace(f"{directory}/", "")) from error


def attachment(
    stream: BinaryIO, name: str, media_type: str, headers: Mapping[str, str] | None = None
) -> StreamingResponse:
    """Return the answer that sends a file and closes it."""
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
