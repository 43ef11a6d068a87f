"""Parts of a step that should be small: weight sync, checkpoints, validation, data, switching, unaccounted time."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from typing import ClassVar

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import baseline
from rl_insight.diagnosis.rule import AT_ONCE, Input, Parameter, StepRule
from rl_insight.diagnosis.signals import Signal, fact, saving
from rl_insight.diagnosis.steps import ObservedStep
from rl_insight.metrics.canonical import CANONICAL
from rl_insight.schema.names import Severity
from rl_insight.words import seconds_text, share_text


class StepShare(StepRule):
    """A kind of state, or the metric for it, that takes too large a share of steps."""

    kind: ClassVar[str]
    metric: ClassVar[str]
    what: ClassVar[str]
    severity: ClassVar[Severity] = "warning"

    @classmethod
    def inputs(cls) -> str:
        """Return the states that it needs, or the metric."""
        return cls.needs or f"{cls.kind} states, or a metric such as {CANONICAL[cls.metric][0]}"

    def missing(self, model: RunModel) -> str | None:
        """Return that neither such states nor the metric are recorded."""
        if model.metrics.track(self.metric) or any(state_kind(name) == self.kind for _, name in model.usual):
            return super().missing(model)
        return f"no {self.inputs()}"

    def _seconds_of(self, model: RunModel, step: ObservedStep) -> tuple[float, str]:
        """Return how long it took in a step, and its name: by states, or else by metrics."""
        states = {name: seconds for name, seconds in step.phases.items() if state_kind(name) == self.kind}
        if seconds := sum(states.values()):
            return seconds, max(states, key=states.__getitem__)
        return self._reported(model, step)

    def _reported(self, model: RunModel, step: ObservedStep) -> tuple[float, str]:
        track = model.metrics.track(self.metric)
        seconds = None if track is None else track.at(step.number)
        return (0.0, "") if track is None or seconds is None else (seconds, track.name)

    def _signal(
        self, step: ObservedStep, seconds: float, name: str, of_s: float | None = None, per: str = "each step"
    ) -> Signal:
        """Return what a step shows: how long something took, of the step or of `of_s`."""
        of_s = step.seconds if of_s is None else of_s
        return Signal(
            {"phase": name},
            f"{name} takes {share_text(seconds / max(of_s, 1e-9))} of {per}: {seconds_text(seconds)} of "
            f"{seconds_text(of_s)}",
            f"The limit for {self.what} is {share_text(self['share'])}.{step.measured_on(name)}",
            self.severity,
            key=(self.kind,),
            impact=saving(seconds, of_s),
            metrics=[name],
            evidence=[fact(name, seconds, "s", f"{per} {seconds_text(of_s)}")],
        )

    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        seconds, name = self._seconds_of(model, step)
        if seconds <= max(self["share"] * step.seconds, self["floor_s"]):
            return []
        return [self._signal(step, seconds, name)]


class SlowWeightSync(StepShare):
    """The weight sync is slow."""

    threshold = (
        "Weight-sync states take {share:.0%} of the step and {floor_s} s, in 3 of 5 steps; or {factor} times as long "
        "as before."
    )
    remedy = "Send weights in buckets over NCCL, send only deltas, or use IPC if engines are colocated."
    parameters = (
        Parameter("share", 0.15, "Share of the step"),
        Parameter("floor_s", 1.0, "Minimum time, in seconds"),
        Parameter("factor", 3, "Time relative to the median before"),
    )
    rank = 47
    explains = frozenset({"step_regression", "rollout_bound", "sync_overhead"})
    kind, metric, what = "sync", "sync_time", "weight sync"

    def _begin(self) -> None:
        self._before: deque[float] = deque(maxlen=30)

    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        seconds, name = self._seconds_of(model, step)
        if not name:
            return None
        usual_s = baseline(self._before)
        has_slowed = usual_s is not None and seconds > self["factor"] * usual_s
        if seconds <= self["floor_s"] or not (seconds > self["share"] * step.seconds or has_slowed):
            self._before.append(seconds)
            return []
        signal = self._signal(step, seconds, name)
        if usual_s is not None and has_slowed:
            signal.title = f"{name} takes {seconds_text(seconds)} instead of {seconds_text(usual_s)}"
            signal.explanation = f"Compared with the median of the last good steps.{step.measured_on(name)}"
            signal.impact["seconds_per_step"] = round(seconds - usual_s, 3)
            signal.evidence.append(fact("median before", usual_s, "s"))
        return [signal]


class _OccasionalShare(StepShare):
    """Work that only some steps have: limited in its share of the last ten steps, and in its time in each."""

    confirmation = AT_ONCE
    """Ten steps are judged together, and a single one that takes too long is enough."""
    rank = 60

    @abstractmethod
    def _limit_s(self, model: RunModel) -> float:
        """Return how long it may take each time."""

    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        seconds, name = self._seconds_of(model, step)
        limit_s = self._limit_s(model)
        if seconds > max(limit_s, self["floor_s"]):
            signal = self._signal(step, seconds, name, per="one step")
            signal.explanation = f"The limit each time is {seconds_text(limit_s)}.{step.measured_on(name)}"
            del signal.impact["seconds_per_step"]
            return [signal]
        window = [one for one in model.steps.closed[-10:] if not one.is_warm_up]
        if len(window) < 10:
            return None
        each = [self._seconds_of(model, one) for one in window]
        total_s, wall_s = sum(seconds for seconds, _ in each), sum(one.seconds for one in window)
        names = [name for seconds, name in each if seconds > 0]
        # A single special step is not enough.
        if len(names) < 2 or total_s <= max(self["share"] * wall_s, self["floor_s"]):
            return []
        signal = self._signal(step, total_s, names[-1], wall_s, "the last 10 steps")
        signal.impact["seconds_per_step"] = round(total_s / len(window), 3)
        return [signal]


class SlowValidation(_OccasionalShare):
    """Validation takes up too much of the run."""

    threshold = (
        "Validation takes {share:.0%} of the last 10 steps, or a single one takes {factor} times the median step."
    )
    remedy = "Validate on fewer samples, less often, or on dedicated engines."
    parameters = (
        Parameter("share", 0.2, "Share of the last 10 steps"),
        Parameter("factor", 5, "One validation relative to the median step"),
        Parameter("floor_s", 5.0, "Minimum time, in seconds"),
    )
    kind, metric, what = "validation", "validation_time", "validation"
    severity = "info"

    def _limit_s(self, model: RunModel) -> float:
        return self["factor"] * (model.steps.usual_seconds() or math.inf)


class SlowCheckpoint(_OccasionalShare):
    """Checkpoints stall the run."""

    threshold = "Checkpoints take {share:.0%} of the last 10 steps, or a single save takes {longest_s} s."
    remedy = "Save asynchronously, write to the local disk first, and set the group timeout above the time of a save."
    parameters = (
        Parameter("share", 0.1, "Share of the last 10 steps"),
        Parameter("longest_s", 300, "Maximum time of a single save, in seconds: half of the usual NCCL timeout"),
        Parameter("floor_s", 5.0, "Minimum time, in seconds"),
    )
    kind, metric, what = "checkpoint", "checkpoint_time", "checkpoints"

    def _limit_s(self, model: RunModel) -> float:  # noqa: ARG002
        return self["longest_s"]


class DataStarvation(StepShare):
    """The run is waiting for data."""

    threshold = "Loading data takes {share:.0%} of the step and {floor_s} s, in 3 of 5 steps."
    remedy = "Add data-loader workers, prefetch, or keep a local copy."
    parameters = (Parameter("share", 0.1, "Share of the step"), Parameter("floor_s", 0.05, "Minimum time, in seconds"))
    rank = 47
    explains = frozenset({"step_regression"})
    kind, metric, what = "data", "data_time", "loading data"


class SwitchOverhead(StepShare):
    """Switching between training and generation is slow."""

    threshold = "Switching takes {share:.0%} of the step and {floor_s} s, in 3 of 5 steps."
    needs = "a metric such as timing_s/switch_to_rollout or sleep_time"
    remedy = "Use separate pools, or switch less often."
    parameters = (Parameter("share", 0.15, "Share of the step"), Parameter("floor_s", 1.0, "Minimum time, in seconds"))
    rank = 60
    kind, metric, what = "switch", "switch_time", "switching"

    def _reported(self, model: RunModel, step: ObservedStep) -> tuple[float, str]:
        tracks = [(track, track.at(step.number)) for track in model.metrics.all(self.metric)]
        switches = [(track.name, seconds) for track, seconds in tracks if seconds is not None]
        return sum(seconds for _, seconds in switches), switches[0][0] if switches else ""


class UnattributedTime(StepRule):
    """Part of the step is not covered by any state."""

    threshold = (
        "The lanes of the leading role are in no state for {share:.0%} of the step and {floor_s} s, in 3 of 5 steps; "
        "only info unless it has risen to {factor} times the median and above the longest of the last 30 steps."
    )
    remedy = "Add a state around it; it is often logging, a blocking tracker call, or moving objects between processes."
    parameters = (
        Parameter("share", 0.2, "Share of the step"),
        Parameter("floor_s", 1.0, "Minimum time, in seconds"),
        Parameter("factor", 2, "Time relative to the median of the steps before"),
    )
    requires = Input(
        lambda model: not model.steps.closed or any(step.phases for step in model.steps.closed[-5:]),
        "states of the leading role",
        "wrap the parts of a step in rl_insight.trace_state",
    )
    rank = 68
    explains = frozenset({"step_regression"})

    def _begin(self) -> None:
        self._before: dict[frozenset[str], deque[float]] = {}

    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        if not step.phases:
            return None
        uncovered = max(0.0, step.seconds - step.covered_s)
        before = self._before.setdefault(step.kind, deque(maxlen=30))
        usual_s = baseline(before)
        has_risen = usual_s is not None and uncovered > max(self["factor"] * usual_s, 1.1 * max(before))
        if not has_risen:
            before.append(uncovered)
        if uncovered <= max(self["share"] * step.seconds, self["floor_s"]):
            return []
        return [
            Signal(
                {"role": model.lead or ""},
                f"{share_text(uncovered / step.seconds)} of each step ({seconds_text(uncovered)}) is in no state",
                "The time passes between states of the leading role.",
                "warning" if has_risen else "info",
                key=("risen" if has_risen else "share",),
                impact=saving(uncovered, step.seconds),
                evidence=[fact("uncovered", uncovered, "s", f"step {seconds_text(step.seconds)}")],
            )
        ]


SHARE_RULES = (SlowWeightSync, SlowCheckpoint, SlowValidation, DataStarvation, SwitchOverhead, UnattributedTime)
