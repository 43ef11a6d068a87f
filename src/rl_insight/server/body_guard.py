"""Bodies that come too slowly, or are too long for a route that reads them whole."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rl_insight.server.bodies import too_large

SLOWEST_BYTES_PER_S = 64 * 1024
"""A long body may take longer, at this rate: a run file over a thin line is no attack."""


class BodyGuard:
    """Refuses a request whose body does not come in time, or is longer than the limit.

    Nothing waits for a body but its own connection, yet each one holds memory and a file descriptor: a sender that
    drips a byte now and then must not keep them for ever.

    Args:
        app: what is guarded.
        timeout_s: how long a body may take, and a second more for each `SLOWEST_BYTES_PER_S` that came.
        max_bytes: the longest body.
        own_limits: the paths whose routes bound the length of their bodies themselves.
        on_slow: called for each body that was given up.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        timeout_s: float,
        max_bytes: int,
        own_limits: Collection[str] = (),
        on_slow: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = app
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._own_limits = own_limits
        self._on_slow = on_slow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request with a guarded body."""
        if scope["type"] == "http":
            receive = self._guarded(receive, is_limited=scope["path"] not in self._own_limits)
        await self._app(scope, receive, send)

    def _guarded(self, receive: Receive, *, is_limited: bool) -> Receive:
        begun_s = asyncio.get_running_loop().time()
        size = 0
        is_complete = False

        async def receive_in_time() -> Message:
            nonlocal size, is_complete
            if is_complete:
                return await receive()  # waits for the client to go away, however long that takes
            until_s = begun_s + self._timeout_s + size / SLOWEST_BYTES_PER_S
            try:
                message = await _by(until_s, receive)
            except asyncio.TimeoutError:
                self._on_slow()
                raise _too_slow(size) from None
            size += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if is_limited and size > self._max_bytes:
                raise HTTPException(413, str(too_large(self._max_bytes)), headers={"Connection": "close"})
            return message

        return receive_in_time


async def _by(until_s: float, receive: Receive) -> Message:
    """Wait for a message until a moment of the loop's clock; like `asyncio.wait_for`, which makes a task each time.

    Raises:
        asyncio.TimeoutError: it did not come in time.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 -- a request is served by a task
    is_over = False

    def give_up() -> None:
        nonlocal is_over
        is_over = True
        task.cancel()

    timer = asyncio.get_running_loop().call_at(until_s, give_up)
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


def _too_slow(size: int) -> HTTPException:
    # What is still to come of the body would be taken for the next request: the connection ends here.
    sentence = f"the body did not come in time: {size} bytes arrived. Send it faster, or in smaller parts."
    return HTTPException(408, sentence, headers={"Connection": "close"})
