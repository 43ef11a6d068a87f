"""What the store says about a run, as small rows in the order in which they happened."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from rl_insight.schema.names import process_name

SECOND = 1_000_000_000
STATE_SEGMENTS = frozenset({"state_interval", "state_nested"})


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
        """How long it took."""
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
        """From submission to its end."""
        return (self.end_ns - self.start_ns) / SECOND


class SampleRow(NamedTuple):
    """A value of a metric that rules know."""

    time_ns: int
    series_id: int
    value: float
    step: int | None


class MarkRow(NamedTuple):
    """A step under which a process recorded metrics of any name, and when the first and last of them were."""

    time_ns: int
    process: int
    step: int | None
    last_ns: int


class EventRow(NamedTuple):
    """An event or an error in a log."""

    time_ns: int
    process: int
    name: str
    step: int | None
    text: str


NEVER = 2**63 - 1

_END, _START = itemgetter(0), itemgetter(1)


class Running:
    """Sessions that have begun and not ended, at a moment that only moves forward."""

    def __init__(self) -> None:
        self._arrived: list[SessionRow] = []
        self._place = 0
        self._running: list[tuple[int, int, SessionRow]] = []
        self._count = 0

    def add(self, rows: list[SessionRow]) -> None:
        """Take rows in any order."""
        self._arrived = self._arrived[self._place :] + rows
        self._place = 0
        self._arrived.sort(key=_START)

    def advance(self, until_ns: int) -> list[SessionRow]:
        """Return the rows that ended up to a moment, in the order of their ends."""
        first, self._place = self._place, bisect_right(self._arrived, until_ns, self._place, key=_START)
        ended = []
        while self._running and self._running[0][0] <= until_ns:
            ended.append(heappop(self._running)[2])
        for row in self._arrived[first : self._place]:
            if row[0] <= until_ns:  # most rows end before they are looked at: only the others need the heap
                ended.append(row)
            else:
                self._count += 1
                heappush(self._running, (row[0], self._count, row))
        ended.sort(key=_END)
        return ended

    def open(self) -> list[SessionRow]:
        """Return the rows that run at the moment that `advance` was last called for."""
        return [row for _, _, row in self._running]


Instant = TypeVar("Instant", SampleRow, MarkRow, EventRow)


class Instants(Generic[Instant]):
    """Rows without a duration, handed out in the order of time."""

    def __init__(self) -> None:
        self._arrived: list[Instant] = []
        self._place = 0

    def add(self, rows: list[Instant]) -> None:
        """Take rows in any order."""
        self._arrived = self._arrived[self._place :] + rows
        self._place = 0
        self._arrived.sort(key=lambda row: row.time_ns)

    def advance(self, until_ns: int) -> list[Instant]:
        """Return the rows up to a moment."""
        first = self._place
        while self._place < len(self._arrived) and self._arrived[self._place].time_ns <= until_ns:
            self._place += 1
        return self._arrived[first : self._place]

    def waiting(self) -> list[Instant]:
        """Return the rows that were not handed out yet, in the order of time."""
        return self._arrived[self._place :]


@dataclass(slots=True)
class ProcessRow:
    """A process, or a scrape target that stands for one."""

    number: int
    process_id: str
    role: str
    rank: int | None
    host: str
    gpu: str | None
    started_ns: int
    heartbeat_s: float
    first_seen_ns: int
    last_seen_ns: int
    ended: bool
    """It said goodbye."""
    is_live: bool
    """False for imports: when they arrived says nothing about when their processes lived."""
    clock_offset_ns: int
    generation: int = 0
    """How many processes of this role and rank there were before."""
    is_target: bool = False
    """It is an endpoint that the server reads."""

    @property
    def title(self) -> str:
        """The process as people call it."""
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
    """What a process has lost so far."""

    process: int
    kind: str
    reason: str
    lost: int
