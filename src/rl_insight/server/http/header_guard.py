"""Request headers that arrive too slowly, or never end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MAX_HEADER_BYTES = 64 * 1024


class HeaderGuard(HttpToolsProtocol):
    """A connection that is closed when a request's line and headers do not arrive in time, or are too long.

    uvicorn waits for headers indefinitely: 250 connections that each send a byte per second keep a server with 256 file
    descriptors from answering any other client. Between requests uvicorn's `timeout_keep_alive` applies; `BodyGuard`
    limits bodies.
    """

    timeout_s = 20.0
    on_slow: Callable[[], None] = staticmethod(lambda: None)
    _timer: asyncio.TimerHandle | None = None
    _size = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._expect_headers(0)

    def data_received(self, data: bytes) -> None:
        """Take what came; what does not complete the headers of a request is counted."""
        self._size += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._timer is None and self._is_idle():
            self._expect_headers(len(data))
        elif self._timer is not None and self._size > MAX_HEADER_BYTES:
            self._refuse(431, f"the headers are longer than {MAX_HEADER_BYTES} bytes: send fewer of them.")

    def on_headers_complete(self) -> None:
        """Stop the clock: a request is there."""
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock: the client is gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        """Return whether bytes arrived that belong to no request yet: they have stopped uvicorn's own clock."""
        is_answered = self.cycle is None or self.cycle.response_complete
        return is_answered and self.timeout_keep_alive_task is None

    def _expect_headers(self, size: int) -> None:
        self._size = size
        self._timer = self.loop.call_later(self.timeout_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if not self._size:
            self.transport.close()  # a connection opened ahead, as browsers do
            return
        self.on_slow()
        self._refuse(408, "the headers did not arrive in time: send them at once.")

    def _refuse(self, status: int, sentence: str) -> None:
        self._stop_waiting()
        body = msgspec.json.encode({"error": sentence})
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self.transport.close()


GuardType = TypeVar("GuardType", bound=HeaderGuard)


def guarded_protocol(
    base: type[GuardType], timeout_s: float, on_slow: Callable[[], None], **more: Any
) -> type[GuardType]:
    """Return the protocol for a server with these settings; uvicorn makes one object of it for each connection."""
    settings = {"timeout_s": timeout_s, "on_slow": staticmethod(on_slow), **more}
    return type("Guarded", (base,), settings)
