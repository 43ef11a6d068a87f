"""Hardware joined with what the run was doing."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from rl_insight.hardware.by_state import (
    GpuSample,
    StateInterval,
    StateUsage,
    StepEnergy,
    energy_by_step,
    usage_by_state,
)
from rl_insight.server.answers import RunParameter, StepParameter, TimeParameter, answers, json_answer, reading
from rl_insight.store.queries import hardware

router = APIRouter(prefix="/api/v1/hardware", tags=["hardware"])

_MARGIN_NS = 60_000_000_000
"""Samples just outside the window tell about its edges."""
_FIELD = {
    "gpu_utilization_ratio": "utilization_ratio",
    "gpu_memory_used_bytes": "memory_used_bytes",
    "gpu_power_watts": "power_watts",
}


class UsageByState(msgspec.Struct, frozen=True):
    """What the GPUs did in each state of each role, and the energy of each step."""

    states: list[StateUsage]
    steps: list[StepEnergy]


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
        rows = hardware.states(cursor, start_ns=start_ns, end_ns=end_ns, first_step=first_step, last_step=last_step)
        if not rows:
            return json_answer(UsageByState([], []))
        found = hardware.gpu_samples(
            cursor,
            start_ns=min(row.start_ns for row in rows) - _MARGIN_NS,
            end_ns=max(row.end_ns for row in rows) + _MARGIN_NS,
        )
    states = [StateInterval(*row) for row in rows]
    samples = _samples(found)
    return json_answer(
        UsageByState(
            usage_by_state(states, samples, max_gap_s=max_gap_s), energy_by_step(states, samples, max_gap_s=max_gap_s)
        )
    )


def _samples(rows: list[hardware.GpuRow]) -> list[GpuSample]:
    return [
        GpuSample(row.host, row.gpu, row.time_ns, **{_FIELD[row.metric]: row.value})  # the others stay unknown
        for row in rows
    ]
