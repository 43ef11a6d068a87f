"""When a process last reported, as an event: exports include it, because an import cannot observe it.

No training process recorded such an event: it is on a dedicated lane of its process, and neither is shown.
"""

from __future__ import annotations

from typing import Final

import msgspec

LAST_SEEN_EVENT: Final = "rl_insight.last_seen"
"""The event name; its time is when the process last reported, its attributes are a `LastSeen`."""

LAST_SEEN_LANE: Final = LAST_SEEN_EVENT
"""The lane of the event."""


class LastSeen(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The last report of a process."""

    final: bool = False
    """Whether it shut down cleanly."""
    heartbeat_s: float = 5.0
    """Its longest silence while healthy."""
