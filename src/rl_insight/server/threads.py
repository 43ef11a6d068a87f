"""What each part of the server costs: the processor time of its threads, by their names."""

from __future__ import annotations

import os
import threading
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_USER, _SYSTEM = 11, 12
"""The places of both times in `/proc/<pid>/task/<tid>/stat`, after the name."""


def processor_seconds() -> dict[str, float]:
    """Return the processor seconds of this process's threads; numbered ones of a pool together, empty outside of Linux.

    >>> all(seconds >= 0 for seconds in processor_seconds().values())
    True
    """
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        try:
            stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text("ascii", "replace")
        except OSError:  # it has ended, or there is no /proc
            continue
        fields = stat.rpartition(")")[2].split()
        name = thread.name.rstrip("0123456789").rstrip("_-")
        seconds = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS_PER_S
        found[name] = round(found.get(name, 0.0) + seconds, 2)
    return found
