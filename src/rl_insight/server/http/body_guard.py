"""Bodies that arrive too slowly, are too long, or do not fit into memory beside those of other requests."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Collection

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rl_insight.server.counters import ByteBudget, Reservation
from rl_insight.server.http.bodies import OVERLOADED, too_large

SLOWEST_BYTES_PER_S = 64 * 1024
"""A long body may take longer, at this rate: uploading a run file over a slow link is not an attack."""
PATIENCE_S = 5.0
CROWDED_BYTES_PER_S = 4 * 1024 * 1024
"""When others find no room, a body has this time and must arrive at this rate: a few that never end, or drip, would
keep all others out."""
LOOK_EVERY_S = 1.0
_RESERVATION = "rl_insight.reservation"
_RETRY_AFTER_S = "2"


class BodyGuard:
    """Refuses a request whose body does not arrive in time, is longer than the limit, or exceeds the memory of all.

    A body holds memory and a file descriptor from its first byte on: neither a sender that drips a byte now and then
    nor many that stop before the last byte may keep more of them than the budget, or keep it from others.

    Args:
        app: the application behind the guard.
        timeout_s: how long a body may take, and a second more for each `SLOWEST_BYTES_PER_S` that arrived.
        max_bytes: the longest body.
        budget: the bytes that all requests may hold together; a request's share is freed when it has been answered.
        own_limits: the paths whose routes bound the length of their bodies themselves.
        streamed: the paths whose routes write bodies to disk as they arrive, and hold none of them.
        on_refused: called with the reason for each body that was not read to its end.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        timeout_s: float,
        max_bytes: int,
        budget: ByteBudget,
        own_limits: Collection[str] = (),
        streamed: Collection[str] = (),
        on_refused: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self._app = app
        self._timeout_s = timeout_s
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
        with self._budget.reserve() as reservation:
            scope[_RESERVATION] = reservation
            await self._app(scope, self._guarded(scope["path"], receive, reservation), send)

    def _guarded(self, path: str, receive: Receive, reservation: Reservation) -> Receive:
        is_limited, is_held = path not in self._own_limits, path not in self._streamed
        begun_s = asyncio.get_running_loop().time()
        size = 0
        is_complete = False

        async def receive_in_time() -> Message:
            nonlocal size, is_complete
            if is_complete:
                return await receive()  # waits for the client to go away, however long that takes
            message = await self._next(begun_s, size, receive, is_held=is_held)
            arrived = len(message.get("body", b""))
            size += arrived
            is_complete = not message.get("more_body", False)
            if is_limited and size > self._max_bytes:
                raise HTTPException(413, str(too_large(self._max_bytes)), headers={"Connection": "close"})
            if is_held and not reservation.grow(arrived):
                raise self._overloaded()
            return message

        return receive_in_time

    async def _next(self, begun_s: float, size: int, receive: Receive, *, is_held: bool) -> Message:
        """Wait for the next part of a body of which so many bytes came, for as long as it may take."""
        until_s = begun_s + self._timeout_s + size / SLOWEST_BYTES_PER_S
        crowded_s = begun_s + PATIENCE_S + size / CROWDED_BYTES_PER_S if is_held else until_s
        while (now_s := asyncio.get_running_loop().time()) < until_s:
            if is_held and now_s >= crowded_s and self._budget.is_crowded:
                raise self._overloaded()
            with contextlib.suppress(asyncio.TimeoutError):
                return await _by(min(until_s, max(crowded_s, now_s + LOOK_EVERY_S)), receive)
        self._on_refused("slow")
        raise too_slow(size)

    def _overloaded(self) -> HTTPException:
        self._on_refused("overload")
        return HTTPException(503, OVERLOADED, headers={"Connection": "close", "Retry-After": _RETRY_AFTER_S})


def reservation_of(scope: Scope) -> Reservation:
    """Return what a request behind a `BodyGuard` holds of the budget."""
    reservation: Reservation = scope[_RESERVATION]
    return reservation


async def _by(until_s: float, receive: Receive) -> Message:
    """Wait for a message until a time of the loop's clock; like `asyncio.wait_for`, which makes a task each time.

    Raises:
        asyncio.TimeoutError: it did not arrive in time.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 -- a request is served by a task
    is_over = False

    def expire() -> None:
        nonlocal is_over
        is_over = True
        task.cancel()

    timer = asyncio.get_running_loop().call_at(until_s, expire)
    try:
        return await receive()
    except asyncio.CancelledError:
        if not is_over:
            raise
        if sys.version_info >= (3, 11):
            task.uncancel()
        raise asyncio.TimeoutError from None
    finally:
        timer.cancel()


def too_slow(size: int) -> HTTPException:
    """Return the refusal of a body of which so many bytes came in time."""
    # What is still to come of the body would be taken for the next request: the connection ends here.
    sentence = f"the body did not arrive in time: {size} bytes came. Send it faster, or in smaller parts."
    return HTTPException(408, sentence, headers={"Connection": "close"})
