"""What the accelerators of a stored run did in each of its states: "GPU busy 31 % during rollout"."""

from __future__ import annotations

import msgspec

from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.hardware import GpuScope, StateTotals, StepEnergy, gpu_totals


class StateUsage(msgspec.Struct, frozen=True):
    """What the GPUs did while a role was in a state. None where no sample tells."""

    role: str
    name: str
    seconds: float
    """Wall time in the state on all hosts together; lanes of one host that overlap count once."""
    gpus: int
    """GPUs that a sample tells something about."""
    utilization_ratio: float | None
    memory_used_bytes: float | None
    """Of one GPU, in the mean."""
    energy_joules: float | None
    """Of all GPUs together."""


class UsageByState(msgspec.Struct, frozen=True):
    """What the GPUs did in each state of each role, and the energy of each step."""

    states: list[StateUsage]
    steps: list[StepEnergy]


def usage_of_run(cursor: Cursor, scope: GpuScope | None = None) -> UsageByState:
    """Return how busy the GPUs were in each state, as "GPU busy 31 % during rollout", and the energy of each step."""
    totals = gpu_totals(cursor, scope)
    return UsageByState([_usage(state) for state in totals.states], totals.steps)


def _usage(state: StateTotals) -> StateUsage:
    return StateUsage(
        role=state.role,
        name=state.name,
        seconds=state.seconds,
        gpus=state.gpus,
        utilization_ratio=_mean(state.busy_gpu_seconds, state.utilization_gpu_seconds),
        memory_used_bytes=_mean(state.memory_byte_seconds, state.memory_gpu_seconds),
        energy_joules=state.energy_joules if state.power_gpu_seconds > 0 else None,
    )


def _mean(total: float, seconds: float) -> float | None:
    return total / seconds if seconds > 0 else None
