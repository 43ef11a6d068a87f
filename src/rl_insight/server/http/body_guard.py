"""Refuses bodies that are too long or exceed the memory that all requests share."""

from __future__ import annotations

from collections.abc import Callable, Collection

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rl_insight.server.counters import ByteBudget, Reservation
from rl_insight.server.http.bodies import OVERLOADED, too_large

_RESERVATION = "rl_insight.reservation"
_RETRY_AFTER_S = "2"


class BodyGuard:
    """Refuses a body that is longer than the limit or exceeds the budget; `GuardedProtocol` refuses slow ones.

    A body holds memory from its first byte on, so its bytes are reserved as they arrive.

    Args:
        app: the application behind the guard.
        max_bytes: the longest body.
        budget: bytes that all requests may hold together; a request's share is freed once it has been answered.
        own_limits: paths whose routes limit the length of their bodies themselves.
        streamed: paths whose routes write bodies to disk as they arrive and hold none of the budget.
        on_refused: called with the reason for each body that was not read to its end.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int,
        budget: ByteBudget,
        own_limits: Collection[str] = (),
        streamed: Collection[str] = (),
        on_refused: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._budget = budget
        self._own_limits = own_limits
        self._streamed = streamed
        self._on_refused = on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request with a guarded body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        is_limited, is_held = path not in self._own_limits, path not in self._streamed
        size = 0

        async def receive_within_limits() -> Message:
            nonlocal size
            message = await receive()
            arrived = len(message.get("body", b""))
            size += arrived
            if is_limited and size > self._max_bytes:
                raise HTTPException(413, str(too_large(self._max_bytes)), headers={"Connection": "close"})
            if is_held and not reservation.grow(arrived):
                self._on_refused("overload")
                raise HTTPException(503, OVERLOADED, headers={"Connection": "close", "Retry-After": _RETRY_AFTER_S})
            return message

        with self._budget.reserve() as reservation:
            scope[_RESERVATION] = reservation
            await self._app(scope, receive_within_limits, send)


def reservation_of(scope: Scope) -> Reservation:
    """Return the share of the budget that a request behind a `BodyGuard` holds."""
    reservation: Reservation = scope[_RESERVATION]
    return reservation
