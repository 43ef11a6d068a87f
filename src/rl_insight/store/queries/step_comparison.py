"""One step compared with a typical one, phase by phase."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec

from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.breakdown import StepBreakdown, breakdown
from rl_insight.store.queries.step_pace import NEIGHBORS, StepLengths

IDLE = "idle"


class PhaseComparison(msgspec.Struct, frozen=True):
    """A phase of a step, and its typical duration on an average lane."""

    name: str
    wall_ns: int
    usual_ns: int


class StepComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One finished step and the median of its neighbors."""

    step: int
    role: str
    start_ns: int
    end_ns: int
    usual_ns: int
    neighbors: int
    """How many other steps it is compared with."""
    phases: list[PhaseComparison]
    """The largest increase first; time without any state is called `idle`."""
    inside: list[PhaseComparison]
    """The same for what ran inside the phases."""


def compare_step(cursor: Cursor, step: int, role: str | None = None, now_ns: int | None = None) -> StepComparison:
    """Compare a finished step with the median of its neighbors, phase by phase, the largest increase first.

    Raises:
        QueryError: the step has not finished, or has no states.
    """
    found = breakdown(cursor, step - NEIGHBORS, step + NEIGHBORS, role, now_ns)
    chosen = next((one for one in found.steps if one.step == step), None)
    if chosen is None:
        raise QueryError(f"step {step} cannot be compared: it has not finished, or no states were recorded in it.")
    others = [one for one in found.steps if one.step != step]
    usual_ns = StepLengths((one.step, one.end_ns - one.start_ns) for one in others).typical_ns(step)
    return StepComparison(
        step=step,
        role=found.role,
        start_ns=chosen.start_ns,
        end_ns=chosen.end_ns,
        usual_ns=chosen.end_ns - chosen.start_ns if usual_ns is None else usual_ns,
        neighbors=len(others),
        phases=_compared(_phases(chosen), [_phases(one) for one in others]),
        inside=_compared(_inside(chosen), [_inside(one) for one in others]),
    )


def _phases(step: StepBreakdown) -> dict[str, int]:
    return {phase.name: phase.wall_ns for phase in step.phases} | {IDLE: step.idle_ns}


def _inside(step: StepBreakdown) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in (part for phase in step.phases for part in phase.inside):
        found[part.name] = found.get(part.name, 0) + part.wall_ns
    return found


def _compared(chosen: dict[str, int], others: list[dict[str, int]]) -> list[PhaseComparison]:
    names: Iterable[str] = dict.fromkeys([*chosen, *(name for one in others for name in one)])
    rows = []
    for name in names:
        wall = chosen.get(name, 0)
        usual = round(median(one.get(name, 0) for one in others)) if others else wall
        if wall or usual:
            rows.append(PhaseComparison(name, wall, usual))
    return sorted(rows, key=lambda row: (row.usual_ns - row.wall_ns, row.name))
