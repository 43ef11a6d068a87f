"""The live stream: server-sent events about changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from rl_insight.server.http.answers import RunParameter, services_of
from rl_insight.server.live import LiveNotes
from rl_insight.store.queries.base import INTEGER_LIMIT

if TYPE_CHECKING:
    from rl_insight.server.services import Services

router = APIRouter(prefix="/api/v1", tags=["live"])

_POLL_S = 0.25
_KEEP_ALIVE_S = 15.0
_RETRY_MS = 1000


@router.get("/live", response_class=StreamingResponse)
async def live(
    request: Request,
    run: RunParameter = None,
    after: Annotated[int | None, Query(ge=0, lt=INTEGER_LIMIT, description="Resume after this version.")] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Stream changes of all runs, or of one, at most four times per second.

    Each `change` event has the number of new records by kind; its id resumes the stream after a lost connection, which
    browsers do automatically. After a change with `resync`, reload everything.
    """
    services = services_of(request)
    feed = services.live
    version = feed.version if after is None else after
    if last_event_id is not None and last_event_id.isdecimal() and len(last_event_id) < 19:
        version = int(last_event_id)
    stream = _stream(request, feed, services, version, run)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _stream(
    request: Request, feed: LiveNotes, services: Services, version: int, run: str | None
) -> AsyncIterator[bytes]:
    yield f"retry: {_RETRY_MS}\nid: {min(version, feed.version)}\nevent: hello\ndata: {{}}\n\n".encode()
    silent_s = 0.0
    while services.is_ready and not await request.is_disconnected():
        if (latest := feed.version) != version:
            changes = feed.since(version, run)
            # Not `feed.version` again: the writer may have added a change in between, which the next round sends.
            version = max([latest, *(change.version for change in changes)])
            for change in changes:
                data = msgspec.json.encode(change).decode()
                yield f"id: {change.version}\nevent: change\ndata: {data}\n\n".encode()
            silent_s = 0.0
        elif silent_s >= _KEEP_ALIVE_S:
            yield b": still here\n\n"
            silent_s = 0.0
        await asyncio.sleep(_POLL_S)
        silent_s += _POLL_S
