"""Loss is data: every drop is counted by kind and reason, and sent with the next batch."""

from __future__ import annotations

import logging
import threading
import warnings
from collections import deque
from typing import Any

from rl_insight.schema.batch import Loss

logger = logging.getLogger("rl_insight")

MAX_NAME = 1024
"""The longest name, lane, key or ID, in characters; the rest is truncated before any processing."""

_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_MAX_WRITTEN = 65_536
_VALUE_COST = 16
"""In characters: up to 4,096 values are written out, fewer if they include long strings."""


class Losses:
    """Counts losses, and warns once per reason.

    >>> losses = Losses()
    >>> losses.count("spans", "buffer_full", 3)
    >>> losses.snapshot()
    [Loss(kind='spans', reason='buffer_full', count=3)]
    """

    __slots__ = ("_counts", "_lock", "_warned")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}
        self._warned: set[str] = set()

    def count(self, kind: str, reason: str, amount: int = 1) -> None:
        """Count a loss."""
        with self._lock:
            key = (kind, reason)
            self._counts[key] = self._counts.get(key, 0) + amount

    def refuse(
        self, kind: str, reason: str, message: str, *, topic: str = "", category: type[Warning] | None = None
    ) -> None:
        """Count one rejected value, and warn if it is the first for this topic."""
        self.count(kind, reason)
        self.warn_once(f"{kind}/{reason}/{topic}", message, category)

    def warn_once(self, topic: str, message: str, category: type[Warning] | None = None) -> None:
        """Warn once per topic: in the log, or with a Python warning of the given category.

        The number of topics is bounded, so hostile names cannot fill memory.
        """
        if topic in self._warned or len(self._warned) >= 1000:
            return
        self._warned.add(topic)
        if category is None:
            logger.warning(message)
            return
        try:
            warnings.warn(message, category, stacklevel=5)
        except category:  # the program turns warnings into errors; telemetry never raises
            logger.warning(message)

    def after_fork(self) -> None:
        """Replace the lock: a thread that does not exist in the child may have held it."""
        self._lock = threading.Lock()

    def snapshot(self) -> list[Loss]:
        """Return the totals so far."""
        with self._lock:
            return [Loss(kind, reason, count) for (kind, reason), count in sorted(self._counts.items())]


def bounded_text(value: Any) -> str:
    """Return `str(value)`; only type and size for a large container, as formatting a million values takes a second.

    >>> bounded_text([1, "a"]), bounded_text([0] * 10_000_000)
    ("[1, 'a']", '<list of 10000000>')
    """
    return str(value) if _is_small(value) else f"<{type(value).__name__} of {len(value)}>"


def _is_small(value: Any) -> bool:
    if not isinstance(value, _CONTAINERS):
        return True
    left = _MAX_WRITTEN
    waiting: list[Any] = [value]
    while waiting and left >= 0:
        inner = waiting.pop()
        left -= _VALUE_COST
        if isinstance(inner, (str, bytes, bytearray)):
            left -= len(inner)
        elif isinstance(inner, _CONTAINERS):
            if len(inner) * _VALUE_COST > left:
                return False
            waiting += inner
            waiting += inner.values() if isinstance(inner, dict) else ()
    return left >= 0


def safe_text(value: Any) -> str:
    """Return `bounded_text(value)`, or the name of the type if that raises.

    >>> safe_text(7)
    '7'
    """
    try:
        return bounded_text(value)
    except Exception:  # noqa: BLE001  # a user's __str__ may raise anything
        return f"<{type(value).__name__}>"


def short_text(value: Any, limit: int = MAX_NAME) -> str:
    """Return a value as a truncated string, as used for stored names and in messages.

    >>> len(short_text("x" * 10_000_000))
    1024
    """
    if isinstance(value, (bytes, bytearray)):
        value = value[:limit]
    elif isinstance(value, str) and str.__len__(value) > limit:
        return str.__getitem__(value, slice(limit))
    text = value if value.__class__ is str else safe_text(value)
    return text if len(text) <= limit else text[:limit]


def shown(value: Any) -> str:
    """Return a value as shown in messages, with strings quoted so that they cannot be mistaken for numbers.

    >>> shown("7"), shown(7.5)
    ("'7'", '7.5')
    """
    return repr(short_text(value)) if isinstance(value, str) else short_text(value)
