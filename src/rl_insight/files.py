"""Files that are replaced as a whole: a reader finds the old content or the new one, never a part of it."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Write a file; with `durable`, its content is on the disk before the name stands for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as stream:
        stream.write(content)
        if durable:
            stream.flush()
            os.fsync(stream.fileno())
    partial.replace(path)
