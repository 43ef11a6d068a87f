"""How encoded batches leave a process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any

LossHandler = Callable[[str, str, int], None]
"""Called as ``on_loss(kind, reason, count)`` when a transport had to give something up, from any thread."""


class Transport(ABC):
    """Takes encoded batches from one process and delivers each of them at least once.

    A recorder calls `send` from its own thread, never from the training thread. Contract:

    - `send` MUST return soon: it MAY write to a local disk, it MUST NOT wait for a network or another process.
    - A transport MUST deliver the batches of a process in any order but without loss while they fit its bounds.
      Past a bound it drops the oldest and MUST report each dropped batch through `on_loss("batches", reason, 1)`.
    - It MAY deliver a batch more than once: receivers take each (process, sequence) once.
    - A problem with the road (a server, a disk) MUST NOT be raised by any method: it is counted, logged once and told
      by `get_status`. `on_loss` MUST be called without holding a lock that `send` or `get_status` needs.
    - After `close`, `send` MUST count the batch as lost (reason `closed`) and MUST NOT raise.
    - `flush` MUST return within `timeout_s`, whether or not everything could be delivered.
    - `close` MUST be idempotent and keep what is undelivered where a later process can find it, if it can.
    - After `fork` the child uses a new transport; `abandon` MUST release what the child inherited (file descriptors,
      locks) without touching what the parent still uses, and without waiting.
    """

    max_batch_bytes: int = 1_000_000
    """Batches should stay below this; a single event may exceed it."""

    server_url: str | None = None
    """The server that the batches go to, where the transport knows it."""

    on_loss: LossHandler = staticmethod(lambda _kind, _reason, _count: None)
    """Set by the owner before the first `send`."""

    on_receiver_restarted: Callable[[], None] = staticmethod(lambda: None)
    """Set by the owner; called when the receiver may have forgotten totals that it had been sent."""

    on_stacks_wanted: Callable[[], None] = staticmethod(lambda: None)
    """Set by the owner; called when the receiver asks for the stacks of this process, from any thread."""

    on_stacks_of_others: Callable[[Collection[str]], None] = staticmethod(lambda _process_ids: None)
    """Set by a relay; called with the ids of processes whose batches it passed on and whose stacks are asked for."""

    on_flush_interval: Callable[[float], None] = staticmethod(lambda _seconds: None)
    """Set by the owner; called with the time between two batches that the receiver would like, 0 for any."""

    @abstractmethod
    def send(self, payload: bytes) -> None:
        """Take over one encoded batch; a relay passes on the batches of several processes."""

    @abstractmethod
    def flush(self, timeout_s: float) -> bool:
        """Try to deliver everything taken so far; True if it was delivered in time."""

    def hear_others(self, timeout_s: float) -> int:  # noqa: ARG002  # most transports end nothing but themselves
        """Wait for the batches that other processes are about to send to a receiver which ends with this one.

        Returns how many processes joined the run there and were not heard in time. MUST return within `timeout_s`.
        """
        return 0

    leads_steps = False
    """Whether the steps of this process are those of others, which get them through the receiver."""
    follows_steps = False
    """Whether the receiver knows the steps of a process that this one follows."""

    def tell_step(self, mark: tuple[int, int]) -> None:
        """Tell the receiver when a step began and its number; called only where `leads_steps`. MUST NOT wait."""

    def ask_steps(self) -> Sequence[tuple[int, int]] | None:
        """Return when the latest steps began, in order; None when that is not known within a moment.

        Called from the flusher's thread, only where `follows_steps`.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Stop; nothing is delivered afterwards."""

    def abandon(self) -> None:
        """Forget everything without delivering it: the transport was inherited through `fork`."""

    def get_status(self) -> dict[str, Any]:
        """Return what was delivered, what waits, and the last problem, as plain values that JSON can carry."""
        return {}
