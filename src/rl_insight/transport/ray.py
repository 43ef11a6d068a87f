"""The Ray transport: sends batches to a hub actor without ever waiting for it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Timer
from typing import Any

from rl_insight.backoff import Backoff
from rl_insight.transport.base import Transport

logger = logging.getLogger("rl_insight")

_MAX_WAITING_BYTES = 64 * 1024 * 1024
_MAX_IN_FLIGHT = 32
_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 5.0
_LEAVE_S = 1.0
_POLL_S = 0.05
_STEPS_S = 0.3


class RayTransport(Transport):
    """Sends batches to an actor's `ingest` method.

    Ray's futures call back when a batch has arrived, so no thread of the training process blocks. An unconfirmed batch
    is retried with the hub that `find_hub` returns at that point.
    """

    max_batch_bytes = 80_000
    """Ray moves arguments above 100 kB through its object store, which is slower."""

    def __init__(
        self,
        hub: Any,
        find_hub: Callable[[], Any],
        *,
        flush_hub: bool = False,
        process_id: str = "",
        settle_s: float = 0.75,
        leads_steps: bool = False,
        other_hubs: Sequence[Any] = (),
    ) -> None:
        self._hub = hub
        self.leads_steps = leads_steps
        self.follows_steps = not leads_steps
        self._other_hubs = other_hubs
        """Hubs of other nodes, whose workers also follow the steps of this process."""
        self._process_id = process_id
        self._settle_s = settle_s
        """Workers send their buffered events within this time."""
        self.flush_hub = flush_hub
        """True in drivers and in the process whose exit ends the hub: the hub's batches must be delivered first."""
        self._find_hub = find_hub
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._in_flight = 0
        self._delivered = 0
        self._retries = 0
        self._last_error: str | None = None
        self._retry: Timer | None = None
        self._backoff = Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S, jitter=True)
        self._closed = False
        self._changed = Condition()

    def send(self, payload: bytes) -> None:
        """Queue a batch and submit as many as may be in flight."""
        if self._closed:
            self.on_loss("batches", "closed", 1)
            return
        dropped = 0
        with self._changed:
            self._waiting.append(payload)
            self._waiting_bytes += len(payload)
            while self._waiting_bytes > _MAX_WAITING_BYTES and len(self._waiting) > 1:
                self._waiting_bytes -= len(self._waiting.popleft())
                dropped += 1
        if dropped:
            self.on_loss("batches", "queue_full", dropped)
        self._submit()

    def _submit(self) -> None:
        while True:
            with self._changed:
                if not self._waiting or self._in_flight >= _MAX_IN_FLIGHT or self._retry is not None or self._closed:
                    return
                payload = self._waiting.popleft()
                self._waiting_bytes -= len(payload)
                self._in_flight += 1
            try:
                future = self._hub.ingest.remote(payload).future()
            except Exception as error:  # noqa: BLE001  # Ray raises its own types, and plain ones while shutting down
                self._failed(payload, error)
                return
            future.add_done_callback(lambda done, sent=payload: self._done(done, sent))

    def _done(self, future: Any, payload: bytes) -> None:
        error = future.exception()
        if error is not None:
            self._failed(payload, error)
            return
        answer = future.result()
        wanted_s, stacks_wanted = answer if isinstance(answer, tuple) else (answer, False)
        if isinstance(wanted_s, float):  # a hub of an older version returns nothing
            self.on_flush_interval(wanted_s)
        if stacks_wanted:
            self.on_stacks_wanted()
        with self._changed:
            self._in_flight -= 1
            self._delivered += 1
            self._backoff.reset()
            self._changed.notify_all()
        self._submit()

    def _failed(self, payload: bytes, error: BaseException) -> None:
        """Put an unconfirmed batch back at the front of the queue, and look up the hub again later."""
        with self._changed:
            self._in_flight -= 1
            self._retries += 1
            first = self._last_error is None
            self._last_error = f"{type(error).__name__}: {error}"
            self._waiting.appendleft(payload)
            self._waiting_bytes += len(payload)
            self._changed.notify_all()
            if self._closed or self._retry is not None:
                return
            self._retry_later()
        if first:
            logger.warning("the monitor hub does not respond: %s. Batches are kept and sent again.", error)

    def _retry_later(self) -> None:
        self._retry = Timer(self._backoff.next_s(), self._reconnect)
        self._retry.daemon = True
        self._retry.start()

    def _reconnect(self) -> None:
        try:
            hub = self._find_hub()
        except Exception as error:  # noqa: BLE001  # Ray raises its own types, and plain ones while shutting down
            hub = None
            self._last_error = f"{type(error).__name__}: {error}"
        with self._changed:
            self._retry = None
            if hub is None and not self._closed:
                self._retry_later()
                return
        if hub is not None:
            self._hub = hub
            self.on_receiver_restarted()
            self._submit()

    def flush(self, timeout_s: float) -> bool:
        """Wait until every batch is confirmed, or the timeout expires."""
        deadline = time.monotonic() + timeout_s
        self._submit()
        with self._changed:
            delivered = self._changed.wait_for(
                lambda: not self._waiting and not self._in_flight, max(0.0, deadline - time.monotonic())
            )
        if not delivered or not self.flush_hub:
            return delivered
        left_s = deadline - time.monotonic()
        return bool(self._call_hub("flush", left_s, timeout_s=left_s))

    def hear_others(self, timeout_s: float) -> int:
        """Wait for a flush of each worker, and for the first batch of joining workers."""
        if not self.flush_hub:
            return 0
        deadline = time.monotonic() + timeout_s / 2  # the rest of the time is for forwarding their batches
        time.sleep(min(self._settle_s, timeout_s / 2))
        while True:
            left_s = deadline - time.monotonic()
            joining = int(self._call_hub("count_joining", self._process_id, timeout_s=max(_POLL_S, left_s)) or 0)
            if not joining or left_s <= _POLL_S:
                return joining
            time.sleep(_POLL_S)

    def tell_step(self, mark: tuple[int, int]) -> None:
        """Send the start time of a step to the hubs."""
        try:
            for hub in {id(hub): hub for hub in (self._hub, *self._other_hubs)}.values():
                hub.note_step.remote(mark)
        except Exception as error:  # noqa: BLE001  # Ray raises its own types, and plain ones while shutting down
            self._last_error = f"{type(error).__name__}: {error}"

    def ask_steps(self) -> Sequence[tuple[int, int]] | None:
        """Get the driver's steps from the hub; blocks the flusher's thread briefly. Old hubs do not have them."""
        found: Sequence[tuple[int, int]] | None = self._call_hub("get_steps", timeout_s=_STEPS_S)
        return found

    def _call_hub(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Call a method of the hub and return its result; None, with `last_error` set, if it fails or times out."""
        try:
            return getattr(self._hub, method).remote(*arguments).future().result(max(0.0, timeout_s))
        except Exception as error:  # noqa: BLE001  # Ray raises its own types, and plain ones while shutting down
            self._last_error = f"{type(error).__name__}: {error}"
            return None

    def close(self) -> None:
        """Stop; unconfirmed batches are counted as lost, though they may still arrive."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            if self._retry is not None:
                self._retry.cancel()
            lost = len(self._waiting) + self._in_flight
            self._waiting.clear()
            self._waiting_bytes = 0
        if lost:
            self.on_loss("batches", "closed", lost)
        if self.flush_hub:
            # Lets the hub deregister from the server while it still can.
            self._call_hub("leave", _LEAVE_S, timeout_s=_LEAVE_S)

    def abandon(self) -> None:
        """Discard everything: Ray's connection does not survive a fork."""
        self._closed = True

    def get_status(self) -> dict[str, Any]:
        """Return delivered and queued batches."""
        with self._changed:
            return {
                "delivered_batches": self._delivered,
                "waiting_batches": len(self._waiting) + self._in_flight,
                "waiting_bytes": self._waiting_bytes,
                "retries": self._retries,
                "last_error": self._last_error,
            }
