"""Files that are replaced atomically: readers see either the old or the new content, never a part of it."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import TypeVar

import msgspec

logger = logging.getLogger(__name__)

ContentT = TypeVar("ContentT")


def replace_file(path: Path, content: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Replace a file atomically; with `durable`, the content is on disk before the rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as stream:
        stream.write(content)
        if durable:
            stream.flush()
            os.fsync(stream.fileno())
    partial.replace(path)


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
