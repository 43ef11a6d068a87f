"""The records of a run as small rows, in chronological order."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from rl_insight.schema.names import STATE_SEGMENTS, process_name

SECOND = 1_000_000_000


class SpanRow(NamedTuple):
    """A state, a phase or an outermost span; aligned nanoseconds."""

    end_ns: int
    """`NEVER` while it is open."""
    start_ns: int
    span_id: int
    lane_id: int
    name: str
    segment: str
    step: int | None
    failed: bool
    error: str | None
    session_id: str | None
    tool: str | None
    tokens: float | None
    depth: int

    @property
    def seconds(self) -> float:
        """Its duration."""
        return (self.end_ns - self.start_ns) / SECOND

    @property
    def is_state(self) -> bool:
        """Whether it is a state of a lane."""
        return self.segment in STATE_SEGMENTS


class SessionRow(NamedTuple):
    """A session that was submitted; `end_ns` is `NEVER` while it is pending."""

    end_ns: int
    start_ns: int
    session_id: str
    task_id: str | None
    process_id: str | None
    role: str | None
    rank: int | None
    status: str
    reason: str | None
    step: int | None
    model_version: str | None
    reward: float | None
    tokens: int | None
    generate_s: float | None
    reward_s: float | None
    toolcall_s: float | None

    @property
    def seconds(self) -> float:
        """The time from its submission to its end."""
        return (self.end_ns - self.start_ns) / SECOND


class SampleRow(NamedTuple):
    """A value of a metric that rules use."""

    time_ns: int
    series_id: int
    value: float
    step: int | None


class MarkRow(NamedTuple):
    """A step under which a process recorded any metrics, and the times of the first and last of them."""

    time_ns: int
    process: int
    step: int | None
    last_ns: int


class EventRow(NamedTuple):
    """An event, or an error in a log."""

    time_ns: int
    process: int
    name: str
    step: int | None
    text: str


NEVER = 2**63 - 1


Ended = TypeVar("Ended", bound=Any)


def ended_between(rows: deque[Ended], start_ns: int, end_ns: int) -> list[Ended]:
    """Return the rows that ended in a window; rows must be ordered by their ends."""
    found = list(takewhile(lambda row: row.end_ns > start_ns, reversed(rows)))
    return [row for row in reversed(found) if row.end_ns <= end_ns]


class Running:
    """Sessions that have begun and not ended, as of a time that only moves forward."""

    def __init__(self) -> None:
        self._arrived: list[SessionRow] = []
        self._running: list[SessionRow] = []

    def add(self, rows: list[SessionRow]) -> None:
        """Add rows in any order."""
        self._arrived = sorted(self._arrived + rows, key=attrgetter("start_ns"))

    def advance(self, until_ns: int) -> list[SessionRow]:
        """Return the rows that ended up to a time, ordered by their ends."""
        place = bisect_right(self._arrived, until_ns, key=attrgetter("start_ns"))
        begun = self._running + self._arrived[:place]
        del self._arrived[:place]
        self._running = [row for row in begun if row.end_ns > until_ns]
        return sorted((row for row in begun if row.end_ns <= until_ns), key=attrgetter("end_ns"))

    def open(self) -> list[SessionRow]:
        """Return the rows that were running at the last `advance`."""
        return self._running


Instant = TypeVar("Instant", SampleRow, MarkRow, EventRow)


class Instants(Generic[Instant]):
    """Rows without a duration, returned in chronological order."""

    def __init__(self) -> None:
        self._arrived: list[Instant] = []
        self._place = 0

    def add(self, rows: list[Instant]) -> None:
        """Add rows in any order."""
        self._arrived = sorted(self._arrived[self._place :] + rows, key=attrgetter("time_ns"))
        self._place = 0

    def advance(self, until_ns: int) -> list[Instant]:
        """Return the rows up to a time."""
        first, self._place = self._place, bisect_right(self._arrived, until_ns, self._place, key=attrgetter("time_ns"))
        return self._arrived[first : self._place]


@dataclass(slots=True)
class ProcessRow:
    """A process or scrape target."""

    number: int
    process_id: str
    role: str
    rank: int | None
    host: str
    gpu: str | None
    started_ns: int
    heartbeat_s: float
    last_seen_ns: int
    ended: bool
    """It exited cleanly."""
    is_live: bool
    """False for imports: their arrival time says nothing about the lifetime of their processes."""
    clock_offset_ns: int
    incarnation: int = 0
    """The number of earlier processes of this role and rank."""
    is_target: bool = False

    @property
    def title(self) -> str:
        """Its role and rank."""
        return process_name(self.role, self.rank)


@dataclass(slots=True)
class SeriesRow:
    """A metric with its labels."""

    series_id: int
    process: int
    name: str
    kind: str
    labels: dict[str, str] = field(default_factory=dict)


class LossRow(NamedTuple):
    """Records that a process has lost so far."""

    process: int
    kind: str
    reason: str
    lost: int
