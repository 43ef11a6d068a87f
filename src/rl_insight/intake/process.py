"""A receiver's state for one process."""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from rl_insight.intake.clock import ClockOffset
from rl_insight.intake.ledger import Ledger
from rl_insight.schema import Batch, Process

Liveness = Literal["live", "silent", "ended"]
"""`ended`: it shut down cleanly. `silent`: it did not, and it has missed several heartbeats."""

LIVENESS: Final[tuple[Liveness, ...]] = get_args(Liveness)

MIN_HEARTBEAT_S: Final = 0.1
MAX_HEARTBEAT_S: Final = 86_400.0
"""Heartbeats are clamped to these bounds."""

FIRST_HEARTBEAT_S: Final = 900.0
"""Assumed for a new sender: a first step of half an hour does not count as silence."""
MIN_CADENCE_S: Final = 300.0
MAX_CADENCE_S: Final = 3600.0
_TRUSTED_S: Final = 3 * FIRST_HEARTBEAT_S
_SILENT_HEARTBEATS = 3
_SECOND = 1_000_000_000


def silence_ns(heartbeat_s: float) -> int:
    """Return how long a process with this heartbeat can be quiet before it is `silent`."""
    # In this order, NaN becomes the smallest heartbeat.
    return int(_SILENT_HEARTBEATS * min(max(MIN_HEARTBEAT_S, heartbeat_s), MAX_HEARTBEAT_S) * _SECOND)


def liveness(*, final: bool, last_seen_ns: int, heartbeat_s: float, now_ns: int) -> Liveness:
    """Return whether a process is live; all times are on the receiver's clock.

    >>> liveness(final=False, last_seen_ns=0, heartbeat_s=5.0, now_ns=15_000_000_001)
    'silent'
    """
    if final:
        return "ended"
    return "silent" if now_ns - last_seen_ns > silence_ns(heartbeat_s) else "live"


class Intake(msgspec.Struct, eq=False):
    """The ledger, clock offset and liveness of one process.

    Not thread-safe: the hub's collector holds its lock, and the store has one writer.

    >>> from rl_insight.schema import BatchBuilder
    >>> intake = Intake(Process(process_id="p", run_id="r", host="h", pid=1), first_seen_ns=0)
    >>> batch = BatchBuilder().build(intake.process, sequence=1, sent_ns=0)
    >>> intake.take(batch, now_ns=5), intake.take(batch, now_ns=6), intake.liveness(now_ns=6)
    (True, False, 'live')
    """

    process: Process
    first_seen_ns: int
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    clock: ClockOffset = msgspec.field(default_factory=ClockOffset)
    last_seen_ns: int = 0
    """When its last new batch arrived, on the receiver's clock."""
    last_sent_ns: int = 0
    final: bool = False

    def take(self, batch: Batch, now_ns: int) -> bool:
        """Accept a batch that arrived at `now_ns`; False for a duplicate."""
        if not self.take_again(batch.sequence, received_ns=now_ns, sent_ns=batch.sent_ns):
            return False
        self.process = batch.process
        self.final = self.final or batch.final
        return True

    def take_again(self, sequence: int, *, received_ns: int, sent_ns: int) -> bool:
        """Restore a batch that a store had accepted; False if it is already known."""
        if not self.ledger.add(sequence):
            return False
        self.last_seen_ns = max(self.last_seen_ns, received_ns)
        self.last_sent_ns = max(self.last_sent_ns, sent_ns)
        if sent_ns:  # the arrival of a batch from a file says nothing about the clock of its process
            self.clock.observe(sent_ns=sent_ns, received_ns=received_ns)
        return True

    def liveness(self, now_ns: int) -> Liveness:
        """Return whether the process is live at a time on the receiver's clock."""
        return liveness(
            final=self.final,
            last_seen_ns=self.last_seen_ns,
            heartbeat_s=self.process.heartbeat_s,
            now_ns=now_ns,
        )

    @property
    def is_complete(self) -> bool:
        """Whether the final batch and all before it have arrived."""
        return self.final and not self.ledger.has_gaps


class Cadence(msgspec.Struct, eq=False):
    """Derives the heartbeat of a sender that does not announce one from the pauses between its messages.

    An OpenTelemetry SDK exports when spans have ended, so it is silent between two steps, and it never announces its
    end. After 45 minutes its longest pause counts as its heartbeat, between 5 minutes and an hour; before that, 15
    minutes or more. Like any process, it is silent after three missed heartbeats.

    >>> cadence = Cadence()
    >>> cadence.hear(0.0), cadence.hear(5.0), cadence.hear(1800.0), cadence.hear(3600.0)
    (900.0, 900.0, 1795.0, 1800.0)
    """

    _first_s: float | None = None
    _last_s: float = 0.0
    _longest_s: float = 0.0

    def hear(self, now_s: float) -> float:
        """Record a message at a monotonic time; return the heartbeat to expect."""
        if self._first_s is None:
            self._first_s = self._last_s = now_s
        self._longest_s = max(self._longest_s, now_s - self._last_s)
        self._last_s = now_s
        least_s = FIRST_HEARTBEAT_S if now_s - self._first_s < _TRUSTED_S else MIN_CADENCE_S
        return min(max(self._longest_s, least_s), MAX_CADENCE_S)


def has_cadence(heartbeat_s: float) -> bool:
    """Return whether a heartbeat was observed rather than announced."""
    return heartbeat_s >= MIN_CADENCE_S
