"""Exponential backoff: the pauses between failing attempts."""

from __future__ import annotations

import random

_MOST_FAILURES = 30
"""Limit on the exponent; no pause gets that long."""


class Backoff:
    """The pause after each failure: it doubles from `initial_s` up to `max_s`, until `reset`.

    With `jitter` each pause is random between `initial_s` and that value, so that clients do not retry all at once.

    >>> backoff = Backoff(0.5, 3.0)
    >>> [backoff.next_s() for _ in range(4)]
    [0.5, 1.0, 2.0, 3.0]
    """

    __slots__ = ("_failures", "_initial_s", "_max_s", "_random")

    def __init__(self, initial_s: float, max_s: float, *, jitter: bool = False) -> None:
        self._initial_s = initial_s
        self._max_s = max(initial_s, max_s)
        # A separate generator: training code seeds the global one and relies on its sequence.
        self._random = random.SystemRandom() if jitter else None
        self._failures = 0

    def next_s(self) -> float:
        """Count a failure and return how long to wait before the next attempt."""
        longest = min(self._max_s, self._initial_s * 2**self._failures)
        self._failures = min(self._failures + 1, _MOST_FAILURES)
        return longest if self._random is None else self._random.uniform(self._initial_s, longest)

    def reset(self) -> None:
        """Start over from the first pause after an attempt succeeded."""
        self._failures = 0
