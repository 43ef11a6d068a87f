"""Ids that are unique across processes, cheap, and untouched by `random.seed()`."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable


class IdSource:
    """Span ids: a random 62-bit start plus a counter, so an id costs one C call and never overflows 64 bits."""

    __slots__ = ("next_span_id", "trace_prefix")

    def __init__(self, seed: bytes | None = None) -> None:
        seed = seed or os.urandom(16)
        start = (int.from_bytes(seed[:8], "little") >> 2) | 1
        self.next_span_id: Callable[[], int] = itertools.count(start).__next__
        self.trace_prefix = int.from_bytes(seed[8:], "little") | 1
        """The upper half of the trace ids that begin in this process; the lower half is the root span's id."""


def new_process_id() -> str:
    """Return a globally unique id for this process: host, pid and 8 random hex digits."""
    return f"{host_name()}-{os.getpid()}-{os.urandom(4).hex()}"


def host_name() -> str:
    """Return this machine's short name, usable in file names."""
    name = socket.gethostname().split(".")[0]
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in name) or "host"
