"""Refuses requests whose headers or bodies arrive too slowly, and headers that never end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, ClassVar, NamedTuple

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from rl_insight.server.counters import ByteBudget
from rl_insight.server.http.bodies import OVERLOADED

MAX_HEADER_BYTES = 64 * 1024
SLOWEST_BYTES_PER_S = 64 * 1024
"""A long body gets more time, at this rate: uploading a run file over a slow link is not an attack."""
PATIENCE_S = 5.0
CROWDED_BYTES_PER_S = 4 * 1024 * 1024
"""When other requests find no room, a body gets this much time and must arrive at this rate: otherwise a few bodies
that stall or drip would lock out everyone else."""
LOOK_EVERY_S = 1.0


class ArrivalLimits(NamedTuple):
    """How slowly requests may arrive."""

    header_timeout_s: float
    body_timeout_s: float
    """For a body, plus a second for each `SLOWEST_BYTES_PER_S` received."""
    budget: ByteBudget
    """Shared by the bodies of all requests."""
    on_refused: Callable[[str], None]
    """Called with the reason for each request that was not read to its end."""
    streamed: Collection[str] = ()
    """Paths whose routes write bodies to disk as they arrive and hold none of the budget."""


class GuardedProtocol(HttpToolsProtocol):
    """A connection that is closed when a request arrives too slowly, or its headers are too long.

    uvicorn waits for headers and bodies indefinitely: 250 connections that each send a byte per second would keep a
    server with 256 file descriptors from answering any other client. One timer per connection covers the headers and
    then the body; between requests uvicorn's `timeout_keep_alive` applies.
    """

    limits: ClassVar[ArrivalLimits]
    _timer: asyncio.TimerHandle | None = None
    _size = 0
    """Bytes received since the timer was started."""
    _began_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Wait for the first request."""
        super().connection_made(transport)
        self._expect_headers(0)

    def data_received(self, data: bytes) -> None:
        """Parse the data; start the timer if it ends in the middle of the headers or the body."""
        self._size += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if self._timer is not None:
            if self._size > MAX_HEADER_BYTES and not self._is_in_body():
                self._refuse(431, f"the headers are longer than {MAX_HEADER_BYTES} bytes: send fewer of them.")
        elif cycle is None or cycle.response_complete:
            if self.timeout_keep_alive_task is None:  # the data belongs to no request yet, and stopped uvicorn's timer
                self._expect_headers(len(data))
        elif cycle.more_body:
            self._size, self._began_s = 0, self.loop.time()
            self._timer = self.loop.call_later(min(PATIENCE_S, self.limits.body_timeout_s), self._check_body)

    def on_headers_complete(self) -> None:
        """Stop the timer and start the request."""
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop the timer: the body is complete."""
        self._stop_timer()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer: the client has disconnected."""
        self._stop_timer()
        super().connection_lost(exc)

    def _is_in_body(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete and self.cycle.more_body

    def _expect_headers(self, size: int) -> None:
        self._size = size
        self._timer = self.loop.call_later(self.limits.header_timeout_s, self._end_headers)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_headers(self) -> None:
        if not self._size:
            self.transport.close()  # a connection opened ahead of time, as browsers do
            return
        self.limits.on_refused("slow")
        self._refuse(408, "the headers did not arrive in time: send them at once.")

    def _check_body(self) -> None:
        self._timer = None
        if not self._is_in_body():
            return  # it was answered without its body
        now_s, limits = self.loop.time(), self.limits
        if self.flow.read_paused:  # held up by the application or by an earlier request, not by the sender
            self._size, self._began_s = 0, now_s
        left_s = self._began_s + limits.body_timeout_s + self._size / SLOWEST_BYTES_PER_S - now_s
        is_late = now_s >= self._began_s + PATIENCE_S + self._size / CROWDED_BYTES_PER_S
        must_yield = is_late and limits.budget.is_crowded and self.cycle.scope.get("path") not in limits.streamed
        if left_s > 0 and not must_yield:
            self._timer = self.loop.call_later(min(left_s, LOOK_EVERY_S), self._check_body)
            return
        limits.on_refused("overload" if left_s > 0 else "slow")
        if left_s > 0:
            self._refuse(503, OVERLOADED, "retry-after: 2\r\n")
        else:
            self._refuse(408, "the body did not arrive in time. Send it faster, or in smaller parts.")

    def _refuse(self, status: int, sentence: str, headers: str = "") -> None:
        """Answer in place of the application, and close: the rest of the request would be read as the next one."""
        self._stop_timer()
        if not getattr(self.cycle, "response_started", False) or self.cycle.response_complete:
            body = msgspec.json.encode({"error": sentence})
            described = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
            self.transport.write(STATUS_LINE[status] + f"{described}{headers}\r\n".encode() + body)
        self.transport.close()


def guarded_protocol(base: type[GuardedProtocol], limits: ArrivalLimits, **more: Any) -> type[GuardedProtocol]:
    """Return the protocol class of a server with these limits; uvicorn makes one object per connection."""
    return type("Guarded", (base,), {"limits": limits, **more})
