"""How encoded batches leave a process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any

LossHandler = Callable[[str, str, int], None]
"""Called as ``on_loss(kind, reason, count)`` when a transport drops something, from any thread."""


class Transport(ABC):
    """Delivers the encoded batches of one process, each at least once.

    The recorder calls `send` from its flusher thread, never from a training thread. Contract:

    - `send` MUST return quickly: it MAY write to a local disk, it MUST NOT wait for the network or another process.
    - A transport MUST deliver the batches of a process without loss, in any order, as long as they fit its bounds.
      Beyond a bound it drops the oldest and MUST report each dropped batch through `on_loss("batches", reason, 1)`.
    - It MAY deliver a batch more than once: receivers deduplicate by (process, sequence).
    - Methods MUST NOT raise because of a server or a disk: such errors are counted, logged once and reported by
      `get_status`. `on_loss` MUST be called without holding a lock that `send` or `get_status` needs.
    - After `close`, `send` MUST count the batch as lost (reason `closed`) and MUST NOT raise.
    - `flush` MUST return within `timeout_s`, whether or not everything could be delivered.
    - `close` MUST be idempotent and keep undelivered batches where a later process can find them, if possible.
    - After `fork` the child uses a new transport; `abandon` MUST release what the child inherited (file descriptors,
      locks) without touching what the parent still uses, and without waiting.
    """

    max_batch_bytes: int = 1_000_000
    """The target size of a batch; a single event may exceed it."""

    server_url: str | None = None
    """The server that receives the batches, if known."""

    on_loss: LossHandler = staticmethod(lambda _kind, _reason, _count: None)
    """Set by the owner before the first `send`."""

    on_receiver_restarted: Callable[[], None] = staticmethod(lambda: None)
    """Set by the owner; called when the receiver may have lost cumulative totals."""

    on_stacks_wanted: Callable[[], None] = staticmethod(lambda: None)
    """Set by the owner; called when the receiver requests the stacks of this process, from any thread."""

    on_stacks_of_others: Callable[[Collection[str]], None] = staticmethod(lambda _process_ids: None)
    """Set by a relay; called with the IDs of processes whose batches it forwarded and whose stacks are requested."""

    on_flush_interval: Callable[[float], None] = staticmethod(lambda _seconds: None)
    """Set by the owner; called with the batch interval that the receiver requests, 0 for any."""

    @abstractmethod
    def send(self, payload: bytes) -> None:
        """Send one encoded batch; a relay forwards the batches of several processes."""

    @abstractmethod
    def flush(self, timeout_s: float) -> bool:
        """Try to deliver everything sent so far; True if that succeeded in time."""

    def hear_others(self, timeout_s: float) -> int:  # noqa: ARG002  # most receivers outlive the process
        """Wait for the batches of other processes if the receiver ends with this process.

        Returns the number of processes that joined the run but sent nothing in time. MUST return within `timeout_s`.
        """
        return 0

    leads_steps = False
    """Whether other processes follow the steps of this one through the receiver."""
    follows_steps = False
    """Whether the receiver knows the steps of a process that this one follows."""

    def tell_step(self, mark: tuple[int, int]) -> None:
        """Send the receiver a step's start time and number; called only if `leads_steps`. MUST NOT wait."""

    def ask_steps(self) -> Sequence[tuple[int, int]] | None:
        """Return when the latest steps began, in order; None if the receiver does not respond in time.

        Called from the flusher's thread, only if `follows_steps`.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Stop; nothing is delivered afterwards."""

    def abandon(self) -> None:
        """Discard everything without delivering it: the transport was inherited through `fork`."""

    def get_status(self) -> dict[str, Any]:
        """Return delivered and queued batches and the last error, as JSON-compatible values."""
        return {}
