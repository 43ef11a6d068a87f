"""What the transports that write to disk share."""

from __future__ import annotations

import os
import re

SUFFIX = ".rli"
"""The ending of every file that holds frames, wherever it lies: offline files and spools are read alike."""

CLOSE_TIMEOUT_S = 2.0
"""How long closing waits for a disk that does not answer."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


def file_name(process_id: str) -> str:
    """Return a process id as a plain file name: no separators, never hidden, never empty.

    >>> file_name("node7-4711-9f3a2c1d"), file_name("../a b")
    ('node7-4711-9f3a2c1d', '_._a_b')
    """
    name = _UNSAFE.sub("_", process_id) or "_"
    return "_" + name[1:] if name.startswith(".") else name


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, in one system call unless the operating system takes only a part of it."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])
