"""Small requests that need neither a task nor the framework: what thousands of processes send all the time.

Making a task, an ASGI scope and two messages of an answer takes three times as long as reading a small batch. A
`QuickRoute` gets the body of a small POST as soon as it is there, and its answer is written when it has one. Whatever
is unusual about a request, such as another method, a longer or compressed body, or a missing token, is served the usual
way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from starlette.responses import Response
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from rl_insight.server.counters import Reservation
from rl_insight.server.http.bodies import OVERLOADED
from rl_insight.server.http.body_guard import LOOK_EVERY_S, PATIENCE_S, too_slow
from rl_insight.server.http.header_guard import HeaderGuard

Reply = Callable[[Response], None]


class QuickRoute(Protocol):
    """A route that takes small bodies at once."""

    path: bytes
    max_bytes: int
    """The longest body."""
    timeout_s: float
    """How long a body may take."""

    def admits(self, scope: Scope) -> bool:
        """Return whether requests with these headers may be served the quick way."""

    def reserve(self, size: int) -> Reservation | None:
        """Return the memory for a body; None when there is no room now."""

    def serve(self, scope: Scope, body: bytes, reply: Reply) -> None:
        """Take a body; `reply` is called once on the event loop, now or later."""

    @property
    def is_crowded(self) -> bool:
        """Whether others found no room lately: what is slow to arrive must go."""

    def on_refused(self, reason: str) -> None:
        """Count a body that was not read to its end."""


class QuickRequest:
    """Stands for a request in uvicorn's protocol, which reads and sets what has no leading underscore."""

    def __init__(self, scope: Scope, reservation: Reservation) -> None:
        self.scope = scope
        self.body = bytearray()
        self.more_body = True
        self.response_complete = False
        self.disconnected = False
        self.keep_alive = True
        self.message_event = self
        self._reservation = reservation

    def set(self) -> None:
        """Do nothing: parts of a body are not served."""

    def release(self) -> None:
        """Free the memory of the body."""
        self._reservation.release()


class QuickProtocol(HeaderGuard):
    """Serves the small requests of one route by itself, in the order of their connection."""

    route: ClassVar[QuickRoute]
    cycle: Any
    """A `QuickRequest`, or what uvicorn makes of a usual one."""
    scope: Any
    _admitted: list[tuple[bytes, bytes]] | None = None
    """The headers of the connection's last quick request: senders repeat theirs."""
    _body_until_s = 0.0

    def data_received(self, data: bytes) -> None:
        """Take what came; a quick request whose body is not complete yet has its time."""
        super().data_received(data)
        if self._timer is None and isinstance(self.cycle, QuickRequest) and self.cycle.more_body:
            self._size = 0
            self._body_until_s = self.loop.time() + self.route.timeout_s
            self._timer = self.loop.call_later(min(PATIENCE_S, self.route.timeout_s), self._look_at_body)

    def on_headers_complete(self) -> None:
        """Begin a quick request, or a usual one."""
        if self.url == self.route.path and (size := self._quick_size()) is not None:
            reservation = self.route.reserve(size)
            if reservation is not None:
                self._stop_waiting()
                self.cycle = QuickRequest(self.scope, reservation)
                return
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Serve a quick request: its body is here."""
        super().on_message_complete()
        request = self.cycle
        if isinstance(request, QuickRequest) and not request.response_complete:
            self._stop_waiting()
            self.route.serve(request.scope, bytes(request.body), lambda answer: self._reply(request, answer))

    def connection_lost(self, exc: Exception | None) -> None:
        """Free what a request holds whose body will never be complete."""
        if isinstance(self.cycle, QuickRequest) and self.cycle.more_body:
            self.cycle.release()
        super().connection_lost(exc)

    def _quick_size(self) -> int | None:
        """Return the length of the body of a request that can be served the quick way."""
        parser = self.parser
        is_usual = parser.get_method() != b"POST" or self.expect_100_continue or not parser.should_keep_alive()
        if is_usual or parser.get_http_version() != "1.1" or (self.cycle and not self.cycle.response_complete):
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
        request.release()
        request.response_complete = True
        if self.transport.is_closing():
            return
        self.transport.write(_bytes_of(answer, keep_alive=request.keep_alive))
        if not request.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _look_at_body(self) -> None:
        assert isinstance(self.cycle, QuickRequest)  # noqa: S101 -- the clock runs for nothing else
        left_s = self._body_until_s - self.loop.time()
        if left_s > 0 and not self.route.is_crowded:
            self._timer = self.loop.call_later(min(left_s, LOOK_EVERY_S), self._look_at_body)
            return
        self.cycle.release()
        self.cycle.response_complete = True
        if left_s > 0:
            self.route.on_refused("overload")
            self._refuse(503, OVERLOADED)
        else:
            self.route.on_refused("slow")
            self._refuse(408, too_slow(len(self.cycle.body)).detail)


class QuickAnswer(Response):
    """An answer whose bytes are ready, with all its headers; one object can be sent any number of times."""

    def __init__(self, answer: Response) -> None:
        super().__init__(answer.body, answer.status_code, dict(answer.headers))
        self.wire = _bytes_of(answer)


class LoopCalls:
    """Calls functions on an event loop: one wake-up serves all that other threads hand over meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()
        self._is_woken = False

    def call(self, function: Callable[[], None]) -> None:
        """Call a function soon; from any thread."""
        self._calls.append(function)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is no one to answer
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._is_woken = False
        while self._calls:
            self._calls.popleft()()


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
