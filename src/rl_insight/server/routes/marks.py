"""What time axes show beside their data: events, checkpoints, restarts and annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from rl_insight.server.http.answers import RunParameter, TimeParameter, answers, json_answer, latest_run, reading
from rl_insight.store import queries

if TYPE_CHECKING:
    from rl_insight.server.services import Services

router = APIRouter(prefix="/api/v1", tags=["marks"])


@router.get("/marks", responses=answers(list[queries.Mark]))
def marks(
    request: Request, start_ns: TimeParameter = None, end_ns: TimeParameter = None, run: RunParameter = None
) -> Response:
    """List events outside of sessions, checkpoints, restarts of processes and annotations, in order.

    Instants of one name that are close together, as when all ranks report the same, are one mark.
    """
    with reading(request, run) as cursor:
        return json_answer(queries.marks(cursor, start_ns, end_ns))


@router.post("/annotations", responses=answers(list[queries.Annotation]))
def annotate(
    request: Request,
    time_ns: Annotated[int, Query(ge=0, lt=2**62, description="Aligned nanoseconds since 1970.")],
    text: Annotated[str, Query(max_length=1000, description="Empty to remove the annotation.")] = "",
    run: RunParameter = None,
) -> Response:
    """Leave a text at a moment of a run; every time axis of the page shows it."""
    services: Services = request.app.state.services
    run_id = run if run is not None else latest_run(services)
    with services.runs.open(run_id) as store:
        return json_answer(queries.annotate(store, time_ns, text))
