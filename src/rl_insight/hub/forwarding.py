"""A transport that feeds a collector in the same process, and can forward the batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_insight.collector import Collector
from rl_insight.errors import SchemaError
from rl_insight.transport.base import Transport
from rl_insight.transport.memory import NullTransport


class ForwardingTransport(Transport):
    """Feeds a collector, and then another transport if there is one.

    Batches are forwarded unchanged, with their sender's identity and sequence numbers.
    """

    def __init__(self, collector: Collector, onward: Transport | None = None) -> None:
        self.collector = collector
        self._onward = onward or NullTransport()
        for name in ("max_batch_bytes", "server_url", "leads_steps", "follows_steps"):
            setattr(self, name, getattr(self._onward, name))

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; callbacks are also set on the next transport."""
        super().__setattr__(name, value)
        if name.startswith("on_"):
            setattr(self._onward, name, value)

    def send(self, payload: bytes) -> None:
        """Pass a batch to the collector and the next transport."""
        try:
            self.collector.ingest(payload)
        except SchemaError:
            self.on_loss("batches", "refused", 1)
            return
        self._onward.send(payload)

    def flush(self, timeout_s: float) -> bool:
        """Flush the next transport; the collector's sinks are drained by `close`."""
        return self._onward.flush(timeout_s)

    def hear_others(self, timeout_s: float) -> int:
        """Wait for other processes at the next transport."""
        return self._onward.hear_others(timeout_s)

    def tell_step(self, mark: tuple[int, int]) -> None:
        """Report a step to the next transport."""
        self._onward.tell_step(mark)

    def ask_steps(self) -> Sequence[tuple[int, int]] | None:
        """Get the steps from the next transport."""
        return self._onward.ask_steps()

    def close(self) -> None:
        """Close the collector and the next transport."""
        self.collector.close()
        self._onward.close()

    def abandon(self) -> None:
        """Release resources inherited by a forked child."""
        self._onward.abandon()

    def get_status(self) -> dict[str, Any]:
        """Return the status of both ends."""
        return {"collector": self.collector.get_status(), "onward": self._onward.get_status()}
