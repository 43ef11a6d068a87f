"""Hardware joined with what the run was doing."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from rl_insight.server.http.answers import RunParameter, StepParameter, TimeParameter, answers, json_answer, reading
from rl_insight.store.queries.usage_by_state import UsageByState, usage_of_run

router = APIRouter(prefix="/api/v1/hardware", tags=["hardware"])


@router.get("/by_state", responses=answers(UsageByState))
def by_state(
    request: Request,
    start_ns: TimeParameter = None,
    end_ns: TimeParameter = None,
    first_step: StepParameter = None,
    last_step: StepParameter = None,
    max_gap_s: Annotated[float, Query(gt=0, le=3600, description="Samples further apart tell nothing between.")] = 30.0,
    run: RunParameter = None,
) -> Response:
    """Show how busy the GPUs were in each state: "GPU busy 31 % during rollout"; and the energy of each step."""
    with reading(request, run) as cursor:
        found = usage_of_run(
            cursor,
            start_ns=start_ns,
            end_ns=end_ns,
            first_step=first_step,
            last_step=last_step,
            max_gap_s=max_gap_s,
        )
    return json_answer(found)
