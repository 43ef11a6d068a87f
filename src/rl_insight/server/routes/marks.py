"""What time axes show beside their data: events, checkpoints, restarts and annotations."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from rl_insight.server.http.answers import RunParameter, answers, json_answer, opened
from rl_insight.store import queries

router = APIRouter(prefix="/api/v1", tags=["marks"])


@router.post("/annotations", responses=answers(list[queries.Annotation]))
def annotate(
    request: Request,
    time_ns: Annotated[int, Query(ge=0, lt=2**62, description="Aligned nanoseconds since 1970.")],
    text: Annotated[str, Query(max_length=1000, description="Empty to remove the annotation.")] = "",
    run: RunParameter = None,
) -> Response:
    """Leave a text at a moment of a run; every time axis of the page shows it."""
    with opened(request, run) as store:
        return json_answer(queries.annotate(store, time_ns, text))
