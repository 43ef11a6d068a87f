"""A transport that ends in a collector of the same process, and may pass the batches on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from rl_insight.collector import Collector
from rl_insight.errors import SchemaError
from rl_insight.transport.base import LossHandler, Transport


class ForwardingTransport(Transport):
    """Feeds a collector, and then another transport if there is one.

    The batches travel on as they came: their sender's identity and sequence numbers stay in them.
    """

    def __init__(self, collector: Collector, onward: Transport | None = None) -> None:
        self.collector = collector
        self._onward = onward
        self._on_loss: LossHandler = lambda _kind, _reason, _count: None
        self._on_stacks_wanted: Callable[[], None] = lambda: None
        self._on_stacks_of_others: Callable[[Collection[str]], None] = lambda _process_ids: None
        self._on_flush_interval: Callable[[float], None] = lambda _seconds: None
        if onward is not None:
            self.max_batch_bytes = onward.max_batch_bytes

    @property
    def on_loss(self) -> LossHandler:
        """Losses, reported here and forwarded."""
        return self._on_loss

    @on_loss.setter
    def on_loss(self, handler: LossHandler) -> None:
        self._on_loss = handler
        if self._onward is not None:
            self._onward.on_loss = handler

    @property
    def on_stacks_wanted(self) -> Callable[[], None]:
        """The answer when the receiver asks for the stacks of this process."""
        return self._on_stacks_wanted

    @on_stacks_wanted.setter
    def on_stacks_wanted(self, handler: Callable[[], None]) -> None:
        self._on_stacks_wanted = handler
        if self._onward is not None:
            self._onward.on_stacks_wanted = handler

    @property
    def on_stacks_of_others(self) -> Callable[[Collection[str]], None]:
        """The answer when the receiver asks for the stacks of processes whose batches are passed on."""
        return self._on_stacks_of_others

    @on_stacks_of_others.setter
    def on_stacks_of_others(self, handler: Callable[[Collection[str]], None]) -> None:
        self._on_stacks_of_others = handler
        if self._onward is not None:
            self._onward.on_stacks_of_others = handler

    @property
    def on_flush_interval(self) -> Callable[[float], None]:
        """The answer to the flush interval that the receiver would like."""
        return self._on_flush_interval

    @on_flush_interval.setter
    def on_flush_interval(self, handler: Callable[[float], None]) -> None:
        self._on_flush_interval = handler
        if self._onward is not None:
            self._onward.on_flush_interval = handler

    def send(self, payload: bytes) -> None:
        """Hand a batch to the collector, and on."""
        try:
            self.collector.ingest(payload)
        except SchemaError:
            self.on_loss("batches", "refused", 1)
            return
        if self._onward is not None:
            self._onward.send(payload)

    def flush(self, timeout_s: float) -> bool:
        """Wait for the transport behind; the collector's sinks have their own time at `close`."""
        return self._onward is None or self._onward.flush(timeout_s)

    def close(self) -> None:
        """Close the collector and the transport behind."""
        self.collector.close()
        if self._onward is not None:
            self._onward.close()

    def abandon(self) -> None:
        """Release what a forked child inherited."""
        if self._onward is not None:
            self._onward.abandon()

    def get_status(self) -> dict[str, Any]:
        """Tell the status of both ends."""
        status = {"collector": self.collector.get_status()}
        if self._onward is not None:
            status["onward"] = self._onward.get_status()
        return status
