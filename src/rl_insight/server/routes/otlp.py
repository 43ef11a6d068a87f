"""OTLP over HTTP: protobuf and JSON, gzip or plain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from rl_insight.errors import SchemaError, TooLargeError
from rl_insight.otlp.decode.requests import JSON, PROTOBUF, OtlpSignal, answer, encoded_answer, encoded_error
from rl_insight.server.http.bodies import BodyError, decompress, media_type, unpacked_limit
from rl_insight.server.http.body_guard import reservation_of
from rl_insight.server.ingest import retry_after_header
from rl_insight.server.otlp.receiver import OtlpSubmission
from rl_insight.server.routes.ingest import REFUSALS, receive

if TYPE_CHECKING:
    from rl_insight.server.services import Services

router = APIRouter(tags=["otlp"])

_INVALID_ARGUMENT, _UNAVAILABLE = 3, 14
_CODES = {400: _INVALID_ARGUMENT, 413: _INVALID_ARGUMENT, 415: _INVALID_ARGUMENT, 503: _UNAVAILABLE}
_ROUTE = "otlp_http"
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_DOCUMENTED: dict[str, Any] = {
    "openapi_extra": {
        "requestBody": {"required": True, "content": {PROTOBUF: _BINARY, JSON: {"schema": {"type": "object"}}}}
    },
    "responses": {
        400: {"description": "The body is not a valid request."},
        **REFUSALS,
        503: {"description": "The store cannot write now; retry after Retry-After seconds."},
    },
}


def _endpoint(signal: OtlpSignal) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await _take(request, signal)

    endpoint.__name__, endpoint.__doc__ = signal.value, f"Store OTLP {signal.value}."
    return router.post(f"/v1/{signal.value}", **_DOCUMENTED)(endpoint)


ENDPOINTS = {f"/v1/{signal.value}": _endpoint(signal) for signal in OtlpSignal}


async def _take(request: Request, signal: OtlpSignal) -> Response:
    services: Services = request.app.state.services
    kind = media_type(request.headers)
    is_json = kind == JSON
    if kind not in {PROTOBUF, JSON}:
        services.counters.refuse(_ROUTE, "content_type")
        return _error(
            415, f"content type {kind[:80]!r} is not supported here: send {PROTOBUF} or {JSON}.", is_json=True
        )
    try:
        body = await receive(request, services, _ROUTE)
        submission = await _submitted(request, services, signal, body, is_json=is_json)
        outcome = await submission.settled()
    except BodyError as error:
        services.counters.refuse(_ROUTE, error.reason)
        return _error(error.status, str(error), is_json=is_json)
    except SchemaError as error:
        return _error(413 if isinstance(error, TooLargeError) else 400, str(error), is_json=is_json)
    if outcome.failure:
        return _error(503, outcome.failure, is_json=is_json, retry_after_s=outcome.retry_after_s)
    content = encoded_answer(answer(signal, outcome.rejected, outcome.problem), is_json=is_json)
    return Response(content, media_type=JSON if is_json else PROTOBUF)


async def _submitted(
    request: Request, services: Services, signal: OtlpSignal, body: bytes, *, is_json: bool
) -> OtlpSubmission:
    encoding = request.headers.get("content-encoding", "")
    peer = request.client.host if request.client else ""
    reservation = reservation_of(request.scope)

    def submit() -> OtlpSubmission:
        plain = decompress(body, encoding, unpacked_limit(body, services.settings), reservation)
        submission = services.otlp.submit(signal, plain, is_json=is_json, peer=peer, route=_ROUTE)
        if plain is not body:
            reservation.shrink(len(plain))
        return submission

    return await asyncio.wrap_future(services.workers.submit(submit))


def _error(status: int, sentence: str, *, is_json: bool, retry_after_s: float | None = None) -> Response:
    # Not 429: older SDKs retry only after a 503.
    headers = retry_after_header(retry_after_s or None) if status == 503 else {}
    content = encoded_error(_CODES[status], sentence, is_json=is_json)
    return Response(content, status, headers, media_type=JSON if is_json else PROTOBUF)
