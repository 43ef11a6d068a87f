"""When a process was last heard, as an event: an export carries it, since its import says nothing of it."""

from __future__ import annotations

from typing import Final

import msgspec

LAST_SEEN_EVENT: Final = "rl_insight.last_seen"
"""The event's name; its time is when the process was last heard, its attributes are a `LastSeen`."""


class LastSeen(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How a process was last heard."""

    final: bool = False
    """Whether it ended in order."""
    heartbeat_s: float = 5.0
    """Its longest silence while it was healthy."""
