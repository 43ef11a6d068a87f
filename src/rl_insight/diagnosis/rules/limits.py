"""Metrics with a limit that they must not exceed in 3 of 5 steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rl_insight.diagnosis.rule import MetricLook, MetricRule, Parameter
from rl_insight.diagnosis.rules.rewards import changes, is_solved
from rl_insight.diagnosis.signals import Signal, fact
from rl_insight.words import number_text, share_text


class _Limit(MetricRule):
    """A value above a limit; critical above the parameter `critical`, if there is one."""

    title: ClassVar[str]
    """With `name`, `value` and `limit` in braces; `raw` is the metric itself."""
    explanation: ClassVar[str]
    as_share: ClassVar[bool] = True
    limits: ClassVar[Mapping[str, str]] = {}
    """Canonical name to the parameter with its limit; `limit` for all others."""
    complements: ClassVar[frozenset[str]] = frozenset()
    """Canonical names of shares that must not be too small: one minus the value is compared."""

    def _compared(self, at: MetricLook) -> tuple[float, float]:
        """Return the value that is compared, and its limit."""
        value = 1.0 - at.value if at.canonical in self.complements else at.value
        return value, self[self.limits.get(at.canonical, "limit")]

    def _look(self, at: MetricLook) -> list[Signal] | None:
        value, limit = self._compared(at)
        if value <= limit:
            return []
        text = share_text if self.as_share else number_text
        title = self.title.format(name=at.name, value=text(value), limit=text(limit), raw=number_text(at.value))
        is_critical = value > self._values.get("critical", float("inf"))
        return at.found(
            title,
            self.explanation,
            "critical" if is_critical else "warning",
            fact(at.name, value, "", f"limit {text(limit)}"),
        )


class Truncation(_Limit):
    """Responses are truncated."""

    threshold = "More than {limit:.0%} of responses are truncated in 3 of 5 steps; critical above {critical:.0%}."
    remedy = "Raise the length cap, shape the reward of overlong responses, or filter the prompts."
    parameters = (Parameter("limit", 0.1, "Share of responses"), Parameter("critical", 0.5, "Share that is critical"))
    metrics = ("truncated_share",)
    title = "{value} of responses are truncated (limit {limit})"
    explanation = "Truncated responses earn no reward for their answer, and their gradient is noise."


class StaleSamples(_Limit):
    """Samples are stale."""

    threshold = (
        "Samples are more than {mean} versions old on average, or the oldest more than {largest}, in 3 of 5 steps."
    )
    remedy = "Shrink the queue, sync weights faster, or give the trainer more capacity."
    parameters = (
        Parameter("mean", 4, "Mean staleness, in versions"),
        Parameter("largest", 8, "Maximum staleness, in versions"),
    )
    metrics = ("staleness_mean", "staleness_max")
    limits: ClassVar[Mapping[str, str]] = {"staleness_mean": "mean", "staleness_max": "largest"}
    warm_up = 3
    title = "Samples are stale: {name} is {value} versions (limit {limit})"
    explanation = "Off-policy samples blow up the importance weights and destabilize training."
    as_share = False


class ClippingSaturated(_Limit):
    """Clipping is saturated."""

    threshold = "More than {limit:.0%} of tokens are clipped in 3 of 5 steps."
    remedy = "Use fewer inner epochs, a lower learning rate, or fresher samples."
    parameters = (Parameter("limit", 0.5, "Share of clipped tokens"),)
    metrics = ("clip_fraction",)
    title = "{value} of tokens are clipped (limit {limit})"
    explanation = "Typical values are between 0.1% and 5%."


class DeadGroups(_Limit):
    """Most groups have identical rewards and teach nothing."""

    threshold = (
        "At least {limit:.0%} of groups have the same reward for all samples in 3 of 5 steps; critical at "
        "{critical:.0%}. If the mean reward is at least {easy:.0%} of the best, the tasks are too easy: one severity "
        "lower, and info once they are solved."
    )
    remedy = "Use dynamic sampling, filter by difficulty, raise the temperature, or use larger groups."
    parameters = (
        Parameter("limit", 0.5, "Share of groups"),
        Parameter("critical", 0.9, "Share that is critical"),
        Parameter("easy", 0.6, "Mean reward relative to the best above which tasks are too easy"),
    )
    metrics = ("dead_group_share", "mixed_group_share")
    complements = frozenset({"mixed_group_share"})
    title = "{value} of groups have identical rewards (limit {limit})"
    explanation = "With identical rewards the advantage is zero, and so is the gradient."
    rank = 57

    def _look(self, at: MetricLook) -> list[Signal] | None:
        found = super()._look(at)
        level = at.model.metrics.at("reward", at.step)
        for signal in found or []:
            if level is None:
                continue
            easy = is_solved(at.model, at.step, self["easy"])
            why = "the tasks are too easy" if easy else "the tasks are too hard, or the verifier is broken"
            signal.explanation += f" The mean reward is {number_text(level)}: {why}."
            if easy:
                is_done = signal.severity == "warning" or is_solved(at.model, at.step)
                signal.severity = "info" if is_done else "warning"
        return found


class EngineMismatch(_Limit):
    """Trainer and inference engine disagree about log-probabilities."""

    threshold = (
        "The mean difference of probabilities is above {probability}, that of log-probabilities above {logprob}, or "
        "the KL above {kl}; in 3 of 5 steps."
    )
    remedy = "Turn off cascade attention, use FP16 on both sides, importance sampling, or batch-invariant kernels."
    parameters = (
        Parameter("probability", 0.01, "Mean difference of probabilities"),
        Parameter("logprob", 0.08, "Mean absolute difference of log-probabilities"),
        Parameter("kl", 0.1, "KL between the two"),
    )
    metrics = ("probability_difference", "logprob_difference", "mismatch_kl")
    limits: ClassVar[Mapping[str, str]] = {
        "probability_difference": "probability",
        "logprob_difference": "logprob",
        "mismatch_kl": "kl",
    }
    warm_up = 3
    title = "Trainer and engine disagree: {name} is {value} (limit {limit})"
    explanation = "Healthy runs stay below 0.005 for probabilities and 0.02 for log-probabilities."
    as_share = False
    rank = 52
    explains = frozenset({
        "importance_weights", "entropy_explosion", "gradient_spike", "clipping_saturated", "mismatch_growth",
    })  # fmt: skip


class ImportanceWeights(_Limit):
    """Importance weights are off."""

    threshold = (
        "The mean weight is below {low} or above {high}, or the effective sample size is below {size}; in 3 of 5 steps."
    )
    remedy = "Use fewer minibatches, less staleness, or rejection sampling."
    parameters = (
        Parameter("low", 0.5, "Minimum mean weight"),
        Parameter("high", 2.0, "Maximum mean weight"),
        Parameter("size", 0.3, "Minimum effective sample size"),
    )
    metrics = ("importance_weight", "effective_sample_size")
    title = "Importance weights are off: {name} is {raw}"
    explanation = "A weight of 1 means that samples come from the policy being trained."

    def _compared(self, at: MetricLook) -> tuple[float, float]:
        lowest, highest = self["low"], self["high"]
        if at.canonical == "effective_sample_size":
            lowest, highest = self["size"], float("inf")
        return 0.0 if lowest <= at.value <= highest else 1.0, 0.5

    def _look(self, at: MetricLook) -> list[Signal] | None:
        found = super()._look(at)
        for signal in found or []:
            signal.evidence = [fact(at.name, at.value, "", f"{self['low']:g} to {self['high']:g}")]
        return found


class AbortedResponses(_Limit):
    """Responses are aborted."""

    threshold = "More than {limit:.0%} of responses are aborted in 3 of 5 steps."
    remedy = "Check the engine's log for the reason; allow aborts only around weight syncs."
    parameters = (Parameter("limit", 0.05, "Share of responses"),)
    metrics = ("aborted_share",)
    title = "{value} of responses are aborted (limit {limit})"
    explanation = "Aborted responses cost time and yield no sample."


class Repetition(_Limit):
    """Responses are repetitive or garbage."""

    threshold = "More than {limit:.0%} of responses are repetitive in 3 of 5 steps."
    remedy = "Roll back, stop repetition in the engine, and check the engine's precision."
    parameters = (Parameter("limit", 0.1, "Share of responses"),)
    metrics = ("repetition_share",)
    title = "{value} of responses are repetitive (limit {limit})"
    explanation = "Repeating up to the length cap is how a collapsed policy usually ends."


class SmallEffectiveBatch(_Limit):
    """The effective batch is shrinking."""

    threshold = "More than {limit:.0%} of the planned samples go unused in 3 of 5 steps; critical above {critical:.0%}."
    remedy = "Find out which filter, mask or error removes most of the samples."
    parameters = (
        Parameter("limit", 0.5, "Unused share"),
        Parameter("critical", 0.98, "Unused share that is critical"),
    )
    metrics = ("valid_share",)
    complements = frozenset(metrics)
    title = "{value} of the batch goes unused (limit {limit})"
    explanation = "The gradient is computed from what is left."


class ToolFailures(_Limit):
    """Tool calls fail, according to the framework's own metric."""

    threshold = "More than {limit:.0%} of tool calls fail in 3 of 5 steps."
    remedy = "Retry only infrastructure errors, and fix the environment."
    parameters = (Parameter("limit", 0.05, "Share of calls"),)
    metrics = ("tool_failure_share",)
    title = "{value} of tool calls fail (limit {limit})"
    explanation = "Healthy runs stay below 5%."


class UselessCritic(_Limit):
    """The critic is useless."""

    threshold = "The explained variance is at most {limit} in 3 of 5 steps, after the first 50."
    remedy = "Warm up the critic, and check its learning rate."
    parameters = (Parameter("limit", 0.0, "Explained variance"),)
    metrics = ("explained_variance",)
    warm_up = 50
    title = "The critic is useless: {name} is {raw}"
    explanation = "Its values predict returns no better than their mean does."

    def _compared(self, at: MetricLook) -> tuple[float, float]:
        return 1.0 - at.value, 1.0 - self["limit"]


class NoUpdate(MetricRule):
    """The policy is not being updated."""

    threshold = "The gradient norm or the learning rate is exactly 0 in 3 of 5 steps."
    remedy = "Check the schedule, dead groups, and whether the trained layers are attached."
    metrics = ("gradient_norm", "learning_rate")
    rank = 58

    def _look(self, at: MetricLook) -> list[Signal] | None:
        before = at.track.before(at.number, 20)
        is_decay = (  # a schedule that ends at 0 is healthy
            at.canonical == "learning_rate"
            and len(before) > 3
            and before == sorted(before, reverse=True)
            and before[0] > 0
        )
        if at.value != 0.0 or is_decay:
            return []
        also = changes(at.model, at.step)
        solved = is_solved(at.model, at.step)
        why = "The weights do not change."
        why += " The tasks are solved: all samples of a group get the same reward." if solved else ""
        why += f" Also: {also[0]}." if also else ""
        return at.found(f"{at.name} is exactly 0", why, "info" if solved else "warning", fact(at.name, 0.0))


LIMIT_RULES = (
    Truncation, StaleSamples, ClippingSaturated, DeadGroups, EngineMismatch, ImportanceWeights, AbortedResponses,
    Repetition, SmallEffectiveBatch, ToolFailures, UselessCritic, NoUpdate,
)  # fmt: skip
