"""Files that are replaced atomically: readers see either the old or the new content, never a part of it."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

logger = logging.getLogger(__name__)

ContentT = TypeVar("ContentT")


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a path for a new file or directory that replaces `path` if the block succeeds, and is removed otherwise.

    With `durable`, the content of the file is on disk before the rename.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        if durable:
            with partial.open("rb+") as written:
                os.fsync(written.fileno())
        partial.replace(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def replace_file(path: Path, content: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Replace a file atomically; with `durable`, the content is on disk before the rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(path, durable=durable) as partial,
        os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream,
    ):
        stream.write(content)


def read_or_set_aside(path: Path, empty: ContentT) -> ContentT:
    """Return the content of a JSON file, of the same type as `empty`; `empty` if there is no file.

    An unreadable file is renamed, so that it is kept rather than overwritten.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=type(empty))
    except FileNotFoundError:
        return empty
    except (OSError, msgspec.DecodeError) as error:
        aside = path.with_name(f"{path.name}.unreadable-{time.time_ns()}")
        with contextlib.suppress(OSError):
            path.rename(aside)
        logger.warning("%s cannot be read: %s. It is kept as %s.", path, error, aside)
        return empty
