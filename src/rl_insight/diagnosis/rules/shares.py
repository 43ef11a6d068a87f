"""Parts of a step that should be small: weight sync, checkpoints, validation, data, switching, nothing at all."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import median
from rl_insight.diagnosis.rule import Parameter, Severity, Signal, StepRule, fact
from rl_insight.diagnosis.steps import Step
from rl_insight.diagnosis.words import seconds_text, share_text


class _Share(StepRule):
    """A kind of state, or the metric for it, that takes too large a share."""

    kind: ClassVar[str]
    metric: ClassVar[str]
    what: ClassVar[str]
    severity: ClassVar[Severity] = "warning"

    def _lacks(self, model: RunModel) -> str | None:
        if model.metrics.track(self.metric) or any(state_kind(name) == self.kind for _, name in model.usual):
            return None
        return f"no {self.what} states, and no metric for {self.metric.replace('_', ' ')}"

    def seconds_of(self, model: RunModel, step: Step) -> tuple[float, str]:
        """Return how long it took in a step, and what it is called."""
        seconds = step.seconds_of(self.kind)
        if seconds:
            names = [name for name in step.phases if state_kind(name) == self.kind]
            return seconds, max(names, key=step.phases.__getitem__)
        track = model.metrics.track(self.metric)
        told = None if track is None else track.at(step.number)
        return (0.0, "") if track is None or told is None else (told, track.name)

    def signal(self, seconds: float, of_s: float, name: str, per: str = "each step") -> Signal:
        """Return the finding about a share."""
        share = seconds / max(of_s, 1e-9)
        return Signal(
            {"phase": name, "role": ""} if not name else {"phase": name},
            f"{name} takes {share_text(share)} of {per}: {seconds_text(seconds)} of {seconds_text(of_s)}",
            f"The limit for {self.what} is {share_text(self['share'])}.",
            self.severity,
            key=(self.kind,),
            seconds_per_step=seconds if per == "each step" else None,
            share_of_step=share,
            metrics=[name],
            evidence=[fact(name, seconds, "s", f"{per} {seconds_text(of_s)}")],
        )

    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Compare the share with its limit."""
        seconds, name = self.seconds_of(model, step)
        if seconds <= max(self["share"] * step.seconds, self["floor_s"]):
            return []
        return [self.signal(seconds, step.seconds, name)]


class SlowWeightSync(_Share):
    """The weight sync is slow."""

    name = "slow_weight_sync"
    threshold = (
        "Weight-sync states take {share} of the step and {floor_s} s, 3 of 5; or have become {factor} times slower."
    )
    needs = "weight-sync states, or a metric such as timing_s/update_weights"
    remedy = "Send weights in buckets over NCCL, send differences only, or use IPC where engines are colocated."
    parameters = (
        Parameter("share", 0.15, "Share of the step"),
        Parameter("floor_s", 1.0, "Smallest time, in seconds"),
        Parameter("factor", 3, "Time compared with the median before"),
    )
    rank = 47
    explains = frozenset({"step_regression", "rollout_bound", "sync_overhead"})
    kind, metric, what = "sync", "sync_time", "weight sync"

    def _begin(self) -> None:
        self._before: list[float] = []

    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Compare the share with its limit, and the time with what it was."""
        seconds, name = self.seconds_of(model, step)
        if not name:
            return None
        usual_s = median(self._before[-30:]) if len(self._before) >= 10 else None
        has_slowed = usual_s is not None and seconds > self["factor"] * usual_s
        if seconds > self["floor_s"] and (seconds > self["share"] * step.seconds or has_slowed):
            signal = self.signal(seconds, step.seconds, name)
            if usual_s is not None and has_slowed:
                signal.title = f"{name} takes {seconds_text(seconds)} instead of {seconds_text(usual_s)}"
                signal.seconds_per_step = seconds - usual_s
                signal.evidence.append(fact("median before", usual_s, "s"))
            return [signal]
        self._before.append(seconds)
        return []


class SlowValidation(_Share):
    """Validation eats the run."""

    name = "slow_validation"
    threshold = "Validation takes {share} of the last 10 steps, or one takes {factor} times the median step."
    needs = "validation states, or a metric such as timing_s/testing"
    remedy = "Validate on fewer samples, more rarely, or on dedicated engines."
    parameters = (
        Parameter("share", 0.2, "Share of the last 10 steps"),
        Parameter("factor", 5, "One validation compared with the median step"),
        Parameter("floor_s", 5.0, "Smallest time, in seconds"),
    )
    rank = 60
    kind, metric, what = "validation", "validation_time", "validation"
    severity = "info"

    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Look at the last ten steps, and at each validation."""
        del step
        return _over_window(self, model)


class SlowCheckpoint(_Share):
    """Checkpoints stall the run."""

    name = "slow_checkpoint"
    threshold = "Checkpoints take {share} of the last 10 steps, or one save takes {longest_s} s."
    needs = "checkpoint states, or a metric such as timing_s/save_checkpoint"
    remedy = "Save asynchronously, write to the local disk first, and make the group timeout longer than a save."
    parameters = (
        Parameter("share", 0.1, "Share of the last 10 steps"),
        Parameter("longest_s", 300, "Longest single save, in seconds: half of the usual NCCL timeout"),
        Parameter("floor_s", 5.0, "Smallest time, in seconds"),
    )
    rank = 60
    kind, metric, what = "checkpoint", "checkpoint_time", "checkpoints"

    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Look at the last ten steps, and at each save."""
        seconds, name = self.seconds_of(model, step)
        if seconds > self["longest_s"]:
            return [self.signal(seconds, step.seconds, name, "one step")]
        return _over_window(self, model)


def _over_window(rule: _Share, model: RunModel) -> list[Signal] | None:
    """Compare the sum over the last ten steps; one special step among them must not be enough by itself."""
    window = [one for one in model.steps.closed[-10:] if not one.is_warm_up]
    if len(window) < 10:
        return None
    each = [rule.seconds_of(model, one) for one in window]
    total_s, wall_s = sum(seconds for seconds, _ in each), sum(one.seconds for one in window)
    times = sum(1 for seconds, _ in each if seconds > 0)
    name = next((name for seconds, name in reversed(each) if seconds), "")
    if times < 2 or total_s <= max(rule["share"] * wall_s, rule["floor_s"]):
        return []
    signal = rule.signal(total_s, wall_s, name, "the last 10 steps")
    signal.seconds_per_step = total_s / len(window)
    return [signal]


class DataStarvation(_Share):
    """The run waits for data."""

    name = "data_starvation"
    threshold = "Loading data takes {share} of the step and {floor_s} s, 3 of 5."
    needs = "data states, or a metric such as timing/data_loading"
    remedy = "Add data-loader workers, prefetch, or keep a local copy."
    parameters = (Parameter("share", 0.1, "Share of the step"), Parameter("floor_s", 0.05, "Smallest time, in seconds"))
    rank = 47
    explains = frozenset({"step_regression"})
    kind, metric, what = "data", "data_time", "loading data"


class SwitchOverhead(_Share):
    """Switching between training and generation is slow."""

    name = "switch_overhead"
    threshold = "Switching takes {share} of the step and {floor_s} s, 3 of 5."
    needs = "a metric such as timing_s/switch_to_rollout or sleep_time"
    remedy = "Use separate pools, or switch less often."
    parameters = (Parameter("share", 0.15, "Share of the step"), Parameter("floor_s", 1.0, "Smallest time, in seconds"))
    rank = 60
    kind, metric, what = "switch", "switch_time", "switching"

    def seconds_of(self, model: RunModel, step: Step) -> tuple[float, str]:
        """Return the sum of all switches."""
        found = [
            (track, told) for track in model.metrics.all(self.metric) if (told := track.at(step.number)) is not None
        ]
        return (sum(told for _, told in found), found[0][0].name) if found else (0.0, "")


class UnattributedTime(StepRule):
    """A part of the step is in no state."""

    name = "unattributed_time"
    threshold = (
        "The lanes of the leading role are in no state for {share} of the step and {floor_s} s, 3 of 5; only "
        "information unless it has risen to {factor} times what it was, and above the longest of the last 30."
    )
    needs = "states of the leading role"
    remedy = "Add a state around it; often it is logging, a blocking tracker call, or moving objects between processes."
    parameters = (
        Parameter("share", 0.2, "Share of the step"),
        Parameter("floor_s", 1.0, "Smallest time, in seconds"),
        Parameter("factor", 2, "Compared with the median of the steps before"),
    )
    rank = 68
    explains = frozenset({"step_regression"})

    def _begin(self) -> None:
        self._before: dict[frozenset[str], deque[float]] = {}
        """By the kind of steps."""

    def _lacks(self, model: RunModel) -> str | None:
        if any(step.phases for step in model.steps.closed[-5:]) or not model.steps.closed:
            return None
        return "no states of the leading role: wrap the parts of a step in rl_insight.trace_state"

    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Compare what is covered with the whole step."""
        if not step.phases:
            return None
        uncovered = max(0.0, step.seconds - step.covered_s)
        before = self._before.setdefault(step.kind, deque(maxlen=30))
        has_risen = len(before) >= 10 and uncovered > max(self["factor"] * median(before), 1.1 * max(before))
        if not has_risen:
            before.append(uncovered)
        if uncovered <= max(self["share"] * step.seconds, self["floor_s"]):
            return []
        return [
            Signal(
                {"role": model.lead or ""},
                f"{share_text(uncovered / step.seconds)} of each step ({seconds_text(uncovered)}) is in no state",
                "The time passes between the states of the leading role.",
                "warning" if has_risen else "info",
                key=("risen" if has_risen else "share",),
                seconds_per_step=uncovered,
                share_of_step=uncovered / step.seconds,
                evidence=[fact("uncovered", uncovered, "s", f"step {seconds_text(step.seconds)}")],
            )
        ]
