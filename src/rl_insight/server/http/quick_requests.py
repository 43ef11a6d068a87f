"""Small requests that need neither a task nor the framework, as thousands of processes send them all the time.

Creating a task, an ASGI scope and the two messages of a response takes three times as long as reading a small batch.
The quick route gets the body of a small POST as soon as it is complete, and its response is written when it is ready.
Anything unusual about a request (another method, a longer or compressed body, a missing token) takes the normal path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from starlette.responses import Response
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from rl_insight.server.counters import Reservation
from rl_insight.server.http.guarded_protocol import GuardedProtocol

if TYPE_CHECKING:
    from rl_insight.server.routes.ingest import QuickIngest

logger = logging.getLogger(__name__)

Reply = Callable[[Response], None]


class QuickRequest:
    """Takes the place of uvicorn's request object, which reads and sets the attributes without an underscore."""

    def __init__(self, scope: Scope, reservation: Reservation) -> None:
        self.scope = scope
        self.body = bytearray()
        self.more_body = True
        self.response_complete = False
        self.disconnected = False
        self.keep_alive = True
        self.message_event = self
        self.reservation = reservation

    def set(self) -> None:
        """Do nothing: incomplete bodies are not served."""


class QuickProtocol(GuardedProtocol):
    """Serves the small requests of one route itself, in the order in which they arrive on a connection."""

    route: ClassVar[QuickIngest]
    cycle: Any
    """A `QuickRequest`, or uvicorn's object for a normal one."""
    scope: Any
    _admitted: list[tuple[bytes, bytes]] | None = None
    """The headers of the connection's last quick request: senders repeat theirs."""

    def on_headers_complete(self) -> None:
        """Start a quick request, or a normal one."""
        if self.url == self.route.path and (size := self._quick_size()) is not None:
            reservation = self.limits.budget.reserve()
            if reservation.grow(size):
                self._stop_timer()
                self.cycle = QuickRequest(self.scope, reservation)
                return
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Serve a quick request: its body is complete."""
        super().on_message_complete()
        request = self.cycle
        if isinstance(request, QuickRequest) and not request.response_complete:
            self.route.serve(request.scope, bytes(request.body), lambda answer: self._reply(request, answer))

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the memory of a request whose body will never be complete."""
        if isinstance(self.cycle, QuickRequest) and self.cycle.more_body:
            self.cycle.reservation.release()
        super().connection_lost(exc)

    def _quick_size(self) -> int | None:
        """Return the length of the body if the request can be served here."""
        parser = self.parser
        is_unusual = parser.get_method() != b"POST" or self.expect_100_continue or not parser.should_keep_alive()
        if is_unusual or parser.get_http_version() != "1.1" or (self.cycle and not self.cycle.response_complete):
            return None
        lengths = [value for name, value in self.headers if name == b"content-length"]
        if len(lengths) != 1 or not lengths[0].isdigit() or not 0 < int(lengths[0]) <= self.route.max_bytes:
            return None
        others = [header for header in self.headers if header[0] != b"content-length"]
        if others != self._admitted:
            self.scope |= {"method": "POST", "path": self.route.path.decode(), "query_string": b""}
            if parser.should_upgrade() or not self.route.admits(self.scope):
                return None
            self._admitted = others
        return int(lengths[0])

    def _reply(self, request: QuickRequest, answer: Response) -> None:
        request.reservation.release()
        request.response_complete = True
        if self.transport.is_closing():
            return
        self.transport.write(_bytes_of(answer, keep_alive=request.keep_alive))
        if not request.keep_alive:
            self.transport.close()
        self.on_response_complete()


class QuickAnswer(Response):
    """A response whose bytes are ready, with all its headers; one object can be sent any number of times."""

    def __init__(self, answer: Response) -> None:
        super().__init__(answer.body, answer.status_code, dict(answer.headers))
        self.wire = _bytes_of(answer)


class LoopCalls:
    """Calls functions on an event loop: one wake-up runs everything that other threads have queued by then."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()
        self._is_woken = False

    def call(self, function: Callable[[], None]) -> None:
        """Call a function soon; from any thread."""
        self._calls.append(function)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so are all connections
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._is_woken = False
        while self._calls:
            try:
                self._calls.popleft()()
            except Exception:
                logger.exception("a call on the event loop failed; the others are made")


def _bytes_of(answer: Response, *, keep_alive: bool = True) -> bytes:
    if keep_alive and isinstance(answer, QuickAnswer):
        return answer.wire
    headers = [*answer.raw_headers, *(() if keep_alive else ((b"connection", b"close"),))]
    return b"".join(
        [
            STATUS_LINE[answer.status_code],
            *(part for name, value in headers for part in (name, b": ", value, b"\r\n")),
            b"\r\n",
            answer.body,
        ]
    )
