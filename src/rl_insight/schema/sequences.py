"""Sequence numbers of batches: a process counts its own from 1; senders that do not number theirs get assigned ones."""

from __future__ import annotations

import time
from typing import Final

FIRST_ASSIGNED: Final = 2**48
"""Numbers from here on were assigned by a receiver; no process makes so many batches."""


def first_assigned_sequence() -> int:
    """Return the first number for a sender that does not number its batches: the present time in microseconds.

    After a restart of the receiver they continue above those that it assigned before; a gap between them means nothing.
    """
    return max(time.time_ns() // 1000, FIRST_ASSIGNED)


def is_assigned(sequence: int) -> bool:
    """Return whether a receiver assigned this number.

    >>> is_assigned(first_assigned_sequence()), is_assigned(1_000_000)
    (True, False)
    """
    return sequence >= FIRST_ASSIGNED
