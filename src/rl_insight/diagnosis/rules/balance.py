"""Who waits for whom: rollout and trainer as two halves of a loop."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import is_rollout
from rl_insight.diagnosis.robust import Interval, length_s, overlap_s, union
from rl_insight.diagnosis.rule import Parameter, Signal, StepRule, fact
from rl_insight.diagnosis.steps import Step
from rl_insight.diagnosis.words import share_text

_MAX_PROCESSES = 64
"""Enough to know how a role spends its time."""


@dataclass(slots=True)
class Share:
    """How a role spent a step."""

    waiting: float
    """Share in explicit waits."""
    idle: float
    """Share without any work, recorded as a wait or not recorded at all."""
    waits: list[Interval]
    """When all of its processes waited, by the first of them."""
    busy: list[Interval]


def share_of(model: RunModel, role: str, step: Step) -> Share | None:
    """Return how the processes of a role spent a step; None when they record no states."""
    key = (share_of, role, step.generation, step.number)
    if key not in model.memo:
        model.memo[key] = _share_of(model, role, step)
    found: Share | None = model.memo[key]
    return found


def _share_of(model: RunModel, role: str, step: Step) -> Share | None:
    waiting, idle = [], []
    waits: list[Interval] = []
    busy_of_role: list[Interval] = []
    numbers = (
        process.number for process in model.workers() if process.role == role and process.number in model.activity
    )
    for number in islice(numbers, _MAX_PROCESSES):
        busy = model.activity.busy(number, step.start_ns, step.end_ns)
        waited = model.activity.waiting(number, step.start_ns, step.end_ns)
        worked_s, waited_s = length_s(busy), length_s(waited)
        waiting.append((waited_s - overlap_s(busy, waited)) / step.seconds)
        idle.append(1 - worked_s / step.seconds)
        busy_of_role += busy
        waits = waits or waited
    if not waiting:
        return None
    return Share(sum(waiting) / len(waiting), sum(idle) / len(idle), waits, union(busy_of_role))


def _follower(model: RunModel) -> str | None:
    """Return the role that generates, where it is another one than the leading role."""
    roles = {process.role for process in model.workers() if is_rollout(process.role) and process.role != model.lead}
    return min(roles) if roles else None


class _Balance(StepRule):
    """Compares how the trainer and the rollout spend each step."""

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("waiting", 0.3, "Share of the step that the waiting side waits"),
        Parameter("idle", 0.1, "Share of the step that the busy side may be idle"),
    )
    needs = "states of the trainer and of the rollout in different processes"
    rank = 80

    def _lacks(self, model: RunModel) -> str | None:
        return None if _follower(model) else "no separate rollout processes with states"

    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Compare both halves in a step."""
        follower = _follower(model)
        if follower is None or model.lead is None or step.seconds <= 0 or step.kind - {"sync"}:
            return None
        lead, other = share_of(model, model.lead, step), share_of(model, follower, step)
        if lead is None or other is None:
            return None
        signal = self.compare(step, lead, other, model.lead, follower)
        return [] if signal is None else [signal]

    def compare(self, step: Step, lead: Share, other: Share, leader: str, follower: str) -> Signal | None:
        """Return what is wrong between the two."""
        raise NotImplementedError


class RolloutBound(_Balance):
    """The trainer starves: the rollout is the bottleneck."""

    name = "rollout_bound"
    threshold = "The trainer waits for {waiting} of the step while the rollout is idle for at most {idle}, 3 of 5."
    remedy = "Give the rollout more GPUs or replicas, tune the engine, or let training overlap with generation."

    def compare(self, step: Step, lead: Share, other: Share, leader: str, follower: str) -> Signal | None:
        """Return the starving trainer."""
        if lead.waiting < self["waiting"] or other.idle > self["idle"]:
            return None
        return Signal(
            {"role": follower},
            f"The {leader} waits for samples {share_text(lead.waiting)} of each step while the {follower} is busy "
            "all the time",
            f"A balanced run needs about {1 / max(1 - lead.waiting, 0.05):.1f} times the rollout capacity.",
            "info",
            seconds_per_step=lead.waiting * step.seconds,
            share_of_step=lead.waiting,
            evidence=[fact(f"{leader} waiting", lead.waiting), fact(f"{follower} idle", other.idle)],
        )


class TrainerBound(_Balance):
    """The rollout is throttled: the trainer is the bottleneck."""

    name = "trainer_bound"
    threshold = "The rollout waits for {waiting} of the step while the trainer is idle for at most {idle}, 3 of 5."
    remedy = "Give the trainer more GPUs or a larger micro-batch, or make the rollout smaller."

    def compare(self, step: Step, lead: Share, other: Share, leader: str, follower: str) -> Signal | None:
        """Return the throttled rollout."""
        del step
        if other.waiting < self["waiting"] or lead.idle > self["idle"]:
            return None
        return Signal(
            {"role": leader},
            f"The {follower} waits {share_text(other.waiting)} of each step while the {leader} is busy all the time",
            "The trainer decides how long a step takes; rollout capacity is left unused.",
            "info",
            evidence=[fact(f"{follower} waiting", other.waiting), fact(f"{leader} idle", lead.idle)],
        )


class SyncOverhead(_Balance):
    """Trainer and rollout wait at the same time."""

    name = "sync_overhead"
    threshold = "Both wait at the same time for {waiting} of the step, 3 of 5."
    remedy = "Look at what is open while both wait: the weight sync, a save, the data loader, or a queue."
    parameters = (Parameter("waiting", 0.3, "Share of the step in which both wait"),)

    def compare(self, step: Step, lead: Share, other: Share, leader: str, follower: str) -> Signal | None:
        """Return the joint wait."""
        joint = overlap_s(lead.waits, other.waits) / step.seconds
        if joint < self["waiting"]:
            return None
        return Signal(
            {"role": leader},
            f"{leader} and {follower} wait at the same time for {share_text(joint)} of each step",
            "While both wait nothing is computed at all.",
            "info",
            seconds_per_step=joint * step.seconds,
            share_of_step=joint,
            evidence=[fact("both waiting", joint)],
        )


class SerialAsync(_Balance):
    """An asynchronous run works serially."""

    name = "serial_async"
    threshold = (
        "Work of trainer and rollout overlaps for less than {overlap} of the shorter one, 3 of 5, with samples that "
        "are at least one version old."
    )
    remedy = (
        "Let the queue hold at least one batch, raise the staleness bound, and check that a sync does not drain it."
    )
    parameters = (Parameter("overlap", 0.1, "Overlap as a share of the shorter of the two"),)

    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Look only at runs that allow old samples: others are serial on purpose."""
        track = model.metrics.track("staleness_mean")
        staleness = None if track is None else track.at(step.number)
        if staleness is None or staleness < 0.5:
            return None
        return super().look(model, step)

    def compare(self, step: Step, lead: Share, other: Share, leader: str, follower: str) -> Signal | None:
        """Return the missing overlap."""
        shorter = min(length_s(lead.busy), length_s(other.busy))
        if shorter < 0.1 * step.seconds:
            return None
        overlap = overlap_s(lead.busy, other.busy) / shorter
        if overlap >= self["overlap"]:
            return None
        return Signal(
            {"role": follower},
            f"{leader} and {follower} take turns: only {share_text(overlap)} of their work overlaps",
            "Samples are allowed to be old, so both could work at the same time.",
            "info",
            seconds_per_step=shorter * (1 - overlap),
            share_of_step=shorter * (1 - overlap) / step.seconds,
            evidence=[fact("overlap", overlap)],
        )
