"""Runs, the processes in them, and what was lost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from rl_insight.server.answers import RunParameter, answers, json_answer, reading
from rl_insight.store import queries
from rl_insight.store.runs import RunInfo

if TYPE_CHECKING:
    from rl_insight.server.services import Services

router = APIRouter(prefix="/api/v1", tags=["runs"])


@router.get("/runs", responses=answers(list[RunInfo], "The runs, the most recently written first."))
def list_runs(request: Request) -> Response:
    """List the runs."""
    services: Services = request.app.state.services
    return json_answer(services.runs.list_runs())


@router.delete("/runs", responses={404: {"description": "No such run."}, 409: {"description": "It is in use."}})
def delete_run(request: Request, run: Annotated[str, Query(max_length=500)]) -> JSONResponse:
    """Delete a run and its file."""
    services: Services = request.app.state.services
    services.runs.delete(run)
    return JSONResponse({"deleted": run})


@router.get("/summary", responses=answers(queries.RunSummary))
def summary(request: Request, run: RunParameter = None) -> Response:
    """Show a run at a glance: its time, steps, and how much of everything it holds."""
    with reading(request, run) as cursor:
        return json_answer(queries.summary(cursor))


@router.get("/processes", responses=answers(list[queries.ProcessHealth]))
def processes(request: Request, run: RunParameter = None) -> Response:
    """Show the processes of a run and their health."""
    with reading(request, run) as cursor:
        return json_answer(queries.processes(cursor, time.time_ns()))


@router.get("/losses", responses=answers(list[queries.LossCount]))
def losses(request: Request, run: RunParameter = None) -> Response:
    """Show what telemetry was lost, by process, kind and reason."""
    with reading(request, run) as cursor:
        return json_answer(queries.losses(cursor))
