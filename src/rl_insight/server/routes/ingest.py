"""The native ingest route: frames of batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers
from starlette.types import Scope

from rl_insight.server.counters import Reservation
from rl_insight.server.http.bodies import BodyError, decompress, media_type, read_body, unpacked_limit
from rl_insight.server.http.body_guard import reservation_of
from rl_insight.server.http.quick_requests import LoopCalls, QuickAnswer, Reply
from rl_insight.server.http.security import RAW_HEADERS, SecurityMiddleware
from rl_insight.server.ingest import RETRY_AFTER_S, Outcome, Submission, retry_after_header
from rl_insight.server.pacing import SHORTEST_S
from rl_insight.transport.ingest_client import CONTENT_TYPE, INGEST_PATH

if TYPE_CHECKING:
    from rl_insight.server.services import Services

router = APIRouter(tags=["ingest"])

_ACCEPTED_TYPES = frozenset({CONTENT_TYPE, "application/octet-stream"})
_READ_AT_ONCE_BYTES = 16 * 1024
"""Reading this much takes 0.1 ms; passing it to a thread and back would take longer."""
_OPENAPI: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "Frames of one batch each (docs/events.md); Content-Encoding may be gzip or zstd.",
        "content": {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}

REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"description": "The token is missing or wrong."},
    403: {"description": "The request comes from a page of another origin."},
    413: {"description": "The body is too large."},
    415: {"description": "Unsupported content type or encoding."},
}
"""Responses sent before the body is read."""


@router.post(
    "/api/v1/ingest",
    openapi_extra=_OPENAPI,
    responses={
        400: {"description": "Part of the body is not a batch; the rest is stored."},
        **REFUSALS,
        429: {"description": "Too many batches at once; retry after Retry-After seconds."},
        503: {"description": "The store cannot write now; retry after Retry-After seconds."},
    },
)
async def ingest(request: Request) -> Response:
    """Store batches; the response is sent once they would survive a crash of the server.

    A batch that is sent again is deduplicated. Invalid batches do not affect the others: those are stored, and the
    response has the counts.
    """
    services: Services = request.app.state.services
    kind = media_type(request.headers)
    if kind not in _ACCEPTED_TYPES:
        services.counters.refuse("native", "content_type")
        return _error(415, f"content type {kind[:80]!r} is not supported here: send {CONTENT_TYPE}.")
    try:
        body = await receive(request, services, "native")
        encoding = request.headers.get("content-encoding", "")
        if len(body) <= _READ_AT_ONCE_BYTES and not encoding:
            submission = services.ingest.submit_frames(body)
        else:
            work = services.workers.submit(_submit, services, body, encoding, reservation_of(request.scope))
            submission = await asyncio.wrap_future(work)
        outcome = await submission.settled()
    except BodyError as error:
        services.counters.refuse("native", error.reason)
        return _error(error.status, str(error), retry_after_s=RETRY_AFTER_S if error.status == 503 else None)
    return _answer(services, submission, outcome)


class QuickIngest:
    """The route for small bodies: no task is created, and one wake-up answers all requests of a commit.

    Args:
        services: the parts of the server.
        security: decides who may send.
        error_answer: makes the response to an unexpected error.
    """

    path = INGEST_PATH.encode()
    max_bytes = _READ_AT_ONCE_BYTES

    def __init__(
        self,
        services: Services,
        security: SecurityMiddleware,
        error_answer: Callable[[Request, Exception], Awaitable[Response]],
    ) -> None:
        self._services = services
        self._security = security
        self._error_answer = error_answer
        self._calls: LoopCalls | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def admits(self, scope: Scope) -> bool:
        """Return whether requests with these headers may be served here."""
        headers = Headers(scope=scope)
        is_plain = "content-encoding" not in headers and "transfer-encoding" not in headers
        return is_plain and media_type(headers) in _ACCEPTED_TYPES and self._security.refusal(scope) is None

    def serve(self, scope: Scope, body: bytes, reply: Reply) -> None:
        """Submit the batches of a body; `reply` is called once on the event loop, when they are committed."""
        services = self._services
        if self._calls is None:
            self._calls = LoopCalls(asyncio.get_running_loop())
        calls = self._calls
        services.counters.request("native", len(body))
        try:
            submission = services.ingest.submit_frames(body)
        except Exception as error:  # noqa: BLE001  (as on the normal path, it is answered)
            task = asyncio.get_running_loop().create_task(self._explain(scope, error, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        submission.when_settled(
            lambda: calls.call(lambda: reply(_secured(_answer(services, submission, submission.outcome()))))
        )

    async def _explain(self, scope: Scope, error: Exception, reply: Reply) -> None:
        scope.update(method="POST", path=INGEST_PATH, query_string=b"")
        reply(_secured(await self._error_answer(Request(scope), error)))


def _secured(answer: Response) -> Response:
    if not isinstance(answer, QuickAnswer):
        answer.raw_headers += RAW_HEADERS
    return answer


async def receive(request: Request, services: Services, route: str) -> bytes:
    """Read a request's body within the limit, and count it."""
    limit = services.settings.max_body_bytes
    body = await read_body(request.stream(), request.headers.get("content-length"), limit)
    services.counters.request(route, len(body))
    return body


def _submit(services: Services, body: bytes, encoding: str, reservation: Reservation) -> Submission:
    return services.ingest.submit_frames(
        decompress(body, encoding, unpacked_limit(body, services.settings), reservation)
    )


def _answer(services: Services, submission: Submission, outcome: Outcome) -> Response:
    wanted_s = services.pacing.interval_s(submission.processes)
    stacks_of = services.stacks.take(submission.processes, submission.hosts)
    if not (outcome.failed or outcome.refused or stacks_of):
        return _receipt(outcome.accepted, outcome.duplicates, wanted_s)
    counts = _counts(outcome.accepted, outcome.duplicates, wanted_s)
    if stacks_of:
        counts["stacks"] = stacks_of
    if outcome.failed:
        status = 429 if outcome.is_overload else 503
        return _error(status, outcome.problem, retry_after_s=outcome.retry_after_s or RETRY_AFTER_S, **counts)
    if outcome.refused:
        kept = outcome.accepted + outcome.duplicates
        sentence = (
            f"{outcome.problem} {outcome.refused} of {outcome.refused + kept} batches were refused, {kept} stored."
        )
        return _error(400, sentence, refused=outcome.refused, **counts)
    return Response(msgspec.json.encode(counts), media_type="application/json")


@lru_cache(maxsize=1024)
def _receipt(accepted: int, duplicates: int, wanted_s: float) -> QuickAnswer:
    """Return the response to a request whose batches are all stored; most responses are identical."""
    answer = Response(msgspec.json.encode(_counts(accepted, duplicates, wanted_s)), media_type="application/json")
    return QuickAnswer(_secured(answer))


def _counts(accepted: int, duplicates: int, wanted_s: float) -> dict[str, Any]:
    pace = {"flush_s": wanted_s} if wanted_s > SHORTEST_S else {}
    return {"accepted": accepted, "duplicates": duplicates, **pace}


def _error(status: int, sentence: str, *, retry_after_s: float | None = None, **more: Any) -> Response:
    headers = {} if retry_after_s is None else retry_after_header(retry_after_s)
    return JSONResponse({"error": sentence, **more}, status_code=status, headers=headers)
