"""The heartbeat of a sender that promises none."""

from __future__ import annotations

from typing import Final

import msgspec

FIRST_HEARTBEAT_S: Final = 900.0
"""Of a sender that has not been heard for long: a first step of half an hour does not count as silence."""
MIN_CADENCE_S: Final = 300.0
MAX_CADENCE_S: Final = 3600.0
_TRUSTED_S: Final = 3 * FIRST_HEARTBEAT_S


class Cadence(msgspec.Struct, eq=False):
    """Derives the heartbeat of a sender from the pauses between its messages.

    An OpenTelemetry SDK exports when spans have ended. Between two steps it is silent and healthy, and it says no
    goodbye. Once it has been heard for 45 minutes, the longest of its pauses counts as its heartbeat, from 5 minutes to
    an hour; before that, 15 minutes or more do. As any process, it is silent after three missed heartbeats.

    >>> cadence = Cadence()
    >>> cadence.hear(0.0), cadence.hear(5.0), cadence.hear(1800.0), cadence.hear(3600.0)
    (900.0, 900.0, 1795.0, 1800.0)
    """

    _first_s: float | None = None
    _last_s: float = 0.0
    _longest_s: float = 0.0

    def hear(self, now_s: float) -> float:
        """Note a message that came at a time of a steady clock; returns the heartbeat to expect."""
        if self._first_s is None:
            self._first_s = self._last_s = now_s
        self._longest_s = max(self._longest_s, now_s - self._last_s)
        self._last_s = now_s
        least_s = FIRST_HEARTBEAT_S if now_s - self._first_s < _TRUSTED_S else MIN_CADENCE_S
        return min(max(self._longest_s, least_s), MAX_CADENCE_S)


def has_cadence(heartbeat_s: float) -> bool:
    """Return whether a heartbeat is what a sender was seen to do, rather than what it promised."""
    return heartbeat_s >= MIN_CADENCE_S
