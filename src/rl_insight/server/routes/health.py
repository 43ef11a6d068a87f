"""Whether the server is alive and well."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from rl_insight._version import __version__
from rl_insight.server import metrics
from rl_insight.server.http.answers import services_of
from rl_insight.server.threads import processor_seconds

if TYPE_CHECKING:
    from rl_insight.server.services import Services

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> JSONResponse:
    """Answer as long as the process lives."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz", response_class=PlainTextResponse, responses={503: {"description": "Not ready."}})
async def readyz(request: Request) -> PlainTextResponse:
    """Answer 200 once everything can be reached, 503 before and while stopping."""
    if services_of(request).is_ready:
        return PlainTextResponse("ready\n")
    return PlainTextResponse("not ready\n", status_code=503, headers={"Retry-After": "1"})


@router.get("/metrics", response_class=PlainTextResponse)
def prometheus(request: Request, ranks: Literal["all", "auto"] = "auto") -> Response:
    """Show what all runs recorded, and the server's own health, in Prometheus' formats.

    With more live processes than `max_rank_processes` there are series by role; `ranks=all` shows those of each rank.
    """
    body, content_type = metrics.render(
        services_of(request), request.headers.get("accept", ""), all_ranks=ranks == "all"
    )
    return Response(body, media_type=content_type)


@router.get("/api/v1/status")
def status(request: Request) -> JSONResponse:
    """Return the state of the server: what it has taken, what is queued, who sends."""
    return JSONResponse(describe(services_of(request)))


def describe(services: Services) -> dict[str, Any]:
    """Return the server's status as plain values."""
    refused = services.counters.refused()
    found: dict[str, Any] = {
        "version": __version__,
        "pid": os.getpid(),
        "started_ns": services.started_ns,
        "is_ready": services.is_ready,
        "sql_enabled": services.settings.sql.enabled,
        "writer": services.writer.get_status(),
        "collector": services.collector.get_status(),
        "requests": services.counters.requests(),
        "received_bytes": services.counters.received_bytes(),
        "refused": [{"route": route, "reason": reason, "count": count} for (route, reason), count in refused.items()],
        "open_runs": services.runs.open_runs(),
        "processor_seconds": processor_seconds(),
        "targets": services.scraper.health(),
    }
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain
