"""Log lines and events."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from rl_insight.server.http.answers import (
    LimitParameter,
    RunParameter,
    StepParameter,
    TextParameter,
    TimeParameter,
    answers,
    json_answer,
    reading,
)
from rl_insight.server.routes.timeline import LaneIds
from rl_insight.store import queries

router = APIRouter(prefix="/api/v1", tags=["logs"])


def _conditions(
    text: TextParameter = None,
    start_ns: TimeParameter = None,
    end_ns: TimeParameter = None,
    span_id: Annotated[str | None, Query(pattern="^[0-9a-fA-F]{1,16}$")] = None,
    process_id: TextParameter = None,
    session_id: TextParameter = None,
    step: StepParameter = None,
    lane: LaneIds = None,
    newest_first: bool = True,
    limit: LimitParameter = 200,
) -> dict[str, Any]:
    """Return the conditions that logs and events share."""
    return {
        "text": text,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "span_id": span_id,
        "process_id": process_id,
        "session_id": session_id,
        "step": step,
        "lane_ids": lane,
        "newest_first": newest_first,
        "limit": limit,
    }


Conditions = Annotated[dict[str, Any], Depends(_conditions)]


@router.get("/logs", responses=answers(list[queries.LogLine]))
def logs(
    request: Request,
    conditions: Conditions,
    level: Annotated[int, Query(ge=0, le=1000, description="At least this level, as in `logging`.")] = 0,
    run: RunParameter = None,
) -> Response:
    """Search log lines; `text` is looked for in messages and attributes."""
    with reading(request, run) as cursor:
        return json_answer(queries.search_logs(cursor, level=level, **conditions))


@router.get("/events", responses=answers(list[queries.Event]))
def events(request: Request, conditions: Conditions, run: RunParameter = None) -> Response:
    """Search events; `text` is looked for in names and attributes."""
    with reading(request, run) as cursor:
        return json_answer(queries.search_events(cursor, **conditions))
