"""Which side waits for the other: rollout and trainer as two halves of a loop."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import is_rollout
from rl_insight.diagnosis.robust import Interval, length_s, overlap_s, union
from rl_insight.diagnosis.rule import Input, Parameter, StepRule
from rl_insight.diagnosis.signals import Signal, fact, saving
from rl_insight.diagnosis.steps import ObservedStep
from rl_insight.words import share_text

_MAX_PROCESSES = 64
"""Enough to estimate how a role spends its time."""


@dataclass(slots=True)
class Share:
    """How a role spent a step."""

    waiting: float
    """Share in explicit waits."""
    idle: float
    """Share without any work, whether recorded as a wait or not at all."""
    waits: list[Interval]
    """The waits of its first process that waited."""
    busy: list[Interval]


def share_of(model: RunModel, role: str, step: ObservedStep) -> Share | None:
    """Return how the processes of a role spent a step; None if they record no states."""
    key = (share_of, role, step.generation, step.number)
    if key not in model.memo:
        model.memo[key] = _share_of(model, role, step)
    found: Share | None = model.memo[key]
    return found


def _share_of(model: RunModel, role: str, step: ObservedStep) -> Share | None:
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
    """Return the role that generates, if it is not the leading role itself."""
    roles = {process.role for process in model.workers() if is_rollout(process.role) and process.role != model.lead}
    return min(roles) if roles else None


class _Balance(StepRule):
    """Compares how the trainer and the rollout spend each step."""

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("waiting", 0.3, "Share of the step that the waiting side waits"),
        Parameter("idle", 0.1, "Maximum share of the step that the busy side is idle"),
    )
    requires = Input(_follower, "states of the trainer and of the rollout in different processes")
    rank = 80

    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        follower = _follower(model)
        if follower is None or model.lead is None or step.seconds <= 0 or step.kind - {"sync"}:
            return None
        lead, other = share_of(model, model.lead, step), share_of(model, follower, step)
        if lead is None or other is None:
            return None
        signal = self._compare(step, lead, other, model.lead, follower)
        return [] if signal is None else [signal]

    @abstractmethod
    def _compare(self, step: ObservedStep, lead: Share, other: Share, leader: str, follower: str) -> Signal | None:
        """Return the fault between the two sides, if there is one."""


class RolloutBound(_Balance):
    """The trainer is starved: rollout is the bottleneck."""

    threshold = (
        "The trainer waits for {waiting:.0%} of the step and the rollout idles for {idle:.0%} at most, in 3 of 5 steps."
    )
    remedy = "Give the rollout more GPUs or replicas, tune the engine, or let training overlap with generation."

    def _compare(self, step: ObservedStep, lead: Share, other: Share, leader: str, follower: str) -> Signal | None:
        if lead.waiting < self["waiting"] or other.idle > self["idle"]:
            return None
        return Signal(
            {"role": follower},
            f"The {leader} waits for samples for {share_text(lead.waiting)} of each step while the {follower} is "
            "always busy",
            f"A balanced run would need about {1 / max(1 - lead.waiting, 0.05):.1f}× the rollout capacity.",
            "info",
            impact=saving(lead.waiting * step.seconds, step.seconds),
            evidence=[fact(f"{leader} waiting", lead.waiting), fact(f"{follower} idle", other.idle)],
        )


class TrainerBound(_Balance):
    """The rollout is throttled: the trainer is the bottleneck."""

    threshold = (
        "The rollout waits for {waiting:.0%} of the step and the trainer idles for {idle:.0%} at most, in 3 of 5 steps."
    )
    remedy = "Give the trainer more GPUs or a larger micro-batch, or shrink the rollout."

    def _compare(self, step: ObservedStep, lead: Share, other: Share, leader: str, follower: str) -> Signal | None:  # noqa: ARG002
        if other.waiting < self["waiting"] or lead.idle > self["idle"]:
            return None
        return Signal(
            {"role": leader},
            f"The {follower} waits for {share_text(other.waiting)} of each step while the {leader} is always busy",
            "The trainer determines the step time; rollout capacity goes unused.",
            "info",
            evidence=[fact(f"{follower} waiting", other.waiting), fact(f"{leader} idle", lead.idle)],
        )


class SyncOverhead(_Balance):
    """Trainer and rollout wait at the same time."""

    threshold = "Both wait at the same time for {waiting:.0%} of the step, in 3 of 5 steps."
    remedy = "Check what is open while both wait: the weight sync, a save, the data loader, or a queue."
    parameters = (Parameter("waiting", 0.3, "Share of the step in which both wait"),)

    def _compare(self, step: ObservedStep, lead: Share, other: Share, leader: str, follower: str) -> Signal | None:
        joint = overlap_s(lead.waits, other.waits) / step.seconds
        if joint < self["waiting"]:
            return None
        return Signal(
            {"role": leader},
            f"The {leader} and the {follower} wait at the same time for {share_text(joint)} of each step",
            "While both wait, nothing is computed at all.",
            "info",
            impact=saving(joint * step.seconds, step.seconds),
            evidence=[fact("both waiting", joint)],
        )


class SerialAsync(_Balance):
    """An asynchronous run executes serially."""

    threshold = (
        "Less than {overlap:.0%} of the work of trainer and rollout overlaps, relative to the shorter of the two, in 3 "
        "of 5 steps, although samples may be at least one version old."
    )
    remedy = (
        "Let the queue hold at least one batch, raise the staleness bound, and check that a sync does not drain it."
    )
    parameters = (Parameter("overlap", 0.1, "Overlap as a share of the shorter of the two"),)

    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        staleness = model.metrics.at("staleness_mean", step.number)
        if staleness is None or staleness < 0.5:
            return None  # runs that do not allow old samples are serial on purpose
        return super()._look(model, step)

    def _compare(self, step: ObservedStep, lead: Share, other: Share, leader: str, follower: str) -> Signal | None:
        shorter = min(length_s(lead.busy), length_s(other.busy))
        if shorter < 0.1 * step.seconds:
            return None
        overlap = overlap_s(lead.busy, other.busy) / shorter
        if overlap >= self["overlap"]:
            return None
        return Signal(
            {"role": follower},
            f"The {leader} and the {follower} take turns: only {share_text(overlap)} of their work overlaps",
            "Samples may be stale, so both could work at the same time.",
            "info",
            impact=saving(shorter * (1 - overlap), step.seconds),
            evidence=[fact("overlap", overlap)],
        )
