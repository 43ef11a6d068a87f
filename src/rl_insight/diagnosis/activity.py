"""What processes did lately: their busy and waiting times, and the phases of sessions that ended."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from rl_insight.diagnosis.robust import Durations, Interval
from rl_insight.diagnosis.rows import ProcessRow


@dataclass(slots=True)
class Activity:
    """What one process did lately, in the order of the ends."""

    busy: deque[Interval] = field(default_factory=lambda: deque(maxlen=2_000))
    waiting: deque[Interval] = field(default_factory=lambda: deque(maxlen=2_000))


@dataclass(slots=True)
class Call:
    """One phase of a session that ended."""

    end_ns: int
    seconds: float
    tokens: float | None
    failed: bool
    error: str | None
    process: int
    session_id: str | None


@dataclass(slots=True)
class KnownName:
    """A name of spans on a lane: whose it is, and where its durations and intervals are collected."""

    process: ProcessRow
    usual: Durations
    intervals: deque[Interval] | None = None
    """None for a name that was never a state or phase."""
