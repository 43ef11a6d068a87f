"""Sequence numbers of batches: a process counts its own from 1; what comes without numbers is given some."""

from __future__ import annotations

import time
from typing import Final

FIRST_GIVEN: Final = 2**48
"""Numbers from here on were given by a receiver; no process makes so many batches."""


def first_given_sequence() -> int:
    """Return the first number for a sender that numbers nothing: the present time in microseconds.

    After a restart of the receiver they go on above those it gave before; a gap between them means nothing.
    """
    return max(time.time_ns() // 1000, FIRST_GIVEN)


def is_given(sequence: int) -> bool:
    """Tell whether a receiver gave this number.

    >>> is_given(first_given_sequence()), is_given(1_000_000)
    (True, False)
    """
    return sequence >= FIRST_GIVEN
