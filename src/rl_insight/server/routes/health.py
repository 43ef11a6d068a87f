"""Whether the server is alive and well."""

from __future__ import annotations

import os
import threading
from typing import Any, Literal

import msgspec
import psutil
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from rl_insight._version import __version__
from rl_insight.server import metrics
from rl_insight.server.http.answers import services_of

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> JSONResponse:
    """Answer as long as the process is alive."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz", response_class=PlainTextResponse, responses={503: {"description": "Not ready."}})
async def readyz(request: Request) -> PlainTextResponse:
    """Answer 200 once the server is ready, 503 before that and while it is stopping."""
    if services_of(request).is_ready:
        return PlainTextResponse("ready\n")
    return PlainTextResponse("not ready\n", status_code=503, headers={"Retry-After": "1"})


@router.get("/metrics", response_class=PlainTextResponse)
def prometheus(request: Request, ranks: Literal["all", "auto"] = "auto") -> Response:
    """Show the metrics of all runs, and the server's own health, in Prometheus' formats.

    With more live processes than `max_rank_processes`, series are aggregated by role; `ranks=all` shows each rank.
    """
    body, content_type = metrics.render(
        services_of(request), request.headers.get("accept", ""), all_ranks=ranks == "all"
    )
    return Response(body, media_type=content_type)


@router.get("/api/v1/status")
def status(request: Request) -> JSONResponse:
    """Return the state of the server: batches stored and queued, senders, refusals."""
    services = services_of(request)
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
        "alerts": services.alerts.counts(),
        "open_runs": services.runs.open_runs(),
        "processor_seconds": _cpu_seconds(),
        "targets": services.scraper.health(),
    }
    return JSONResponse(msgspec.to_builtins(found))


def _cpu_seconds() -> dict[str, float]:
    """Return the CPU time of this process's threads by name; the numbered threads of a pool are added up."""
    names = {thread.native_id: thread.name.rstrip("0123456789").rstrip("_-") for thread in threading.enumerate()}
    found: dict[str, float] = {}
    for thread in psutil.Process().threads():
        if name := names.get(thread.id):
            found[name] = found.get(name, 0.0) + thread.user_time + thread.system_time
    return {name: round(seconds, 2) for name, seconds in found.items()}
