"""Waits by polling, for things that do not notify."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

ResultT = TypeVar("ResultT")

_POLL_S = 0.05


def wait_for(condition: Callable[[], ResultT], timeout_s: float, poll_s: float = _POLL_S) -> ResultT:
    """Call `condition` until it returns something true or the time is over; return its last result.

    It is called at least once, and a last time after the deadline.

    >>> wait_for(lambda: "found", 1.0), wait_for(lambda: None, 0.0)
    ('found', None)
    """
    deadline = time.monotonic() + timeout_s
    while True:
        is_over = time.monotonic() >= deadline
        result = condition()
        if result or is_over:
            return result
        time.sleep(poll_s)
