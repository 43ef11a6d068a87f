"""Metrics with a limit: each rule is a limit that a value must not cross in 3 of 5 steps."""

from __future__ import annotations

from typing import ClassVar

from rl_insight.diagnosis.rule import MetricLook, MetricRule, Parameter, Severity, Signal, fact
from rl_insight.diagnosis.rules.rewards import changes, is_solved
from rl_insight.diagnosis.words import number_text, share_text


class _Limit(MetricRule):
    """A value above a limit; with `critical`, far above it."""

    what: ClassVar[str]
    explanation: ClassVar[str]
    as_share: ClassVar[bool] = True
    base_severity: ClassVar[Severity] = "warning"

    def compared(self, at: MetricLook) -> tuple[float, float]:
        """Return what is compared, and its limit."""
        return at.value, self["limit"]

    def look(self, at: MetricLook) -> list[Signal] | None:
        """Compare a point with its limit."""
        value, limit = self.compared(at)
        if value <= limit:
            return []
        text = share_text if self.as_share else number_text
        critical = self._values.get("critical")
        severity: Severity = "critical" if critical is not None and value > critical else self.base_severity
        title = f"{self.what} is {text(value)}, above {text(limit)}"
        return at.found(title, self.explanation, severity, fact(at.name, value, "", f"limit {text(limit)}"))


class Truncation(_Limit):
    """Responses are truncated."""

    name = "truncation"
    threshold = "More than {limit} of the responses are truncated, 3 of 5; critical above {critical}."
    needs = "a metric such as response_length/clip_ratio or completions/clipped_ratio"
    remedy = "Raise the cap, shape the reward of overlong responses, or filter the prompts."
    parameters = (Parameter("limit", 0.1, "Share of responses"), Parameter("critical", 0.5, "Share that is critical"))
    metrics = ("truncated_share",)
    what = "The share of truncated responses"
    explanation = "Truncated responses get no reward for their answer, and their gradient is noise."


class StaleSamples(_Limit):
    """Samples are stale."""

    name = "stale_samples"
    threshold = "The mean staleness is above {mean} versions, or the largest above {largest}, 3 of 5."
    needs = "a metric such as staleness_mean or off_policy/mean"
    remedy = "Make the queue smaller, sync weights faster, or give the trainer more capacity."
    parameters = (
        Parameter("mean", 4, "Mean staleness, in versions"),
        Parameter("largest", 8, "Largest staleness, in versions"),
    )
    metrics = ("staleness_mean", "staleness_max")
    warm_up = 3
    what = "The staleness of samples"
    explanation = "Off-policy samples make the importance weights explode, and training unstable."
    as_share = False

    def compared(self, at: MetricLook) -> tuple[float, float]:
        """Return the mean or the maximum, and its limit."""
        return at.value, self["mean"] if at.canonical == "staleness_mean" else self["largest"]


class ClippingSaturated(_Limit):
    """Clipping saturates."""

    name = "clipping_saturated"
    threshold = "More than {limit} of the tokens are clipped, 3 of 5."
    needs = "a metric such as actor/pg_clipfrac or clip_ratio/region_mean"
    remedy = "Use fewer inner epochs, a lower learning rate, or fresher samples."
    parameters = (Parameter("limit", 0.5, "Share of clipped tokens"),)
    metrics = ("clip_fraction",)
    what = "The share of clipped tokens"
    explanation = "Usual values are between 0.001 and 0.05."


class DeadGroups(_Limit):
    """Most groups have one reward and teach nothing."""

    name = "dead_groups"
    threshold = (
        "At least {limit} of the groups have one reward for all samples, 3 of 5; critical from {critical}. Where the "
        "mean reward is at least {easy} of the best, the tasks are too easy: one severity less, and information once "
        "they are solved."
    )
    needs = "a metric such as frac_reward_zero_std"
    remedy = "Sample dynamically, filter by difficulty, raise the temperature, or use larger groups."
    parameters = (
        Parameter("limit", 0.5, "Share of groups"),
        Parameter("critical", 0.9, "Share that is critical"),
        Parameter("easy", 0.6, "Mean reward, as a share of the best, from which the tasks are too easy"),
    )
    metrics = ("dead_group_share", "mixed_group_share")
    what = "The share of groups with one reward"
    explanation = "With equal rewards the advantage is 0, and so is the gradient."
    rank = 57

    def compared(self, at: MetricLook) -> tuple[float, float]:
        """Return the share of dead groups, and its limit."""
        return at.value if at.canonical == "dead_group_share" else 1.0 - at.value, self["limit"]

    def look(self, at: MetricLook) -> list[Signal] | None:
        """Add whether the tasks are too easy or too hard."""
        found = super().look(at)
        reward = at.model.metrics.track("reward")
        level = None if reward is None else reward.at(at.step)
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

    name = "engine_mismatch"
    threshold = (
        "Mean difference of probabilities above {probability}, of log-probabilities above {logprob}, or KL above {kl}; "
        "3 of 5."
    )
    needs = "a metric such as training/rollout_probs_diff_mean or sampling/sampling_logp_difference/mean"
    remedy = "Switch off cascade attention, use FP16 on both sides, importance sampling, or batch-invariant kernels."
    parameters = (
        Parameter("probability", 0.01, "Mean difference of probabilities"),
        Parameter("logprob", 0.08, "Mean absolute difference of log-probabilities"),
        Parameter("kl", 0.1, "KL between the two"),
    )
    metrics = ("probability_difference", "logprob_difference", "mismatch_kl")
    warm_up = 3
    what = "The difference between trainer and engine"
    explanation = "Healthy runs stay below 0.005 for probabilities and 0.02 for log-probabilities."
    as_share = False
    rank = 52
    explains = frozenset({
        "importance_weights", "entropy_explosion", "gradient_spike", "clipping_saturated", "mismatch_growth",
    })  # fmt: skip

    def compared(self, at: MetricLook) -> tuple[float, float]:
        """Return the difference, and the limit for a way to measure it."""
        names = {"probability_difference": "probability", "logprob_difference": "logprob", "mismatch_kl": "kl"}
        return at.value, self[names[at.canonical]]


class ImportanceWeights(_Limit):
    """Importance weights are off."""

    name = "importance_weights"
    threshold = "The mean weight is below {low} or above {high}, or the effective sample size below {size}; 3 of 5."
    needs = "a metric such as rollout_corr/rollout_is_mean"
    remedy = "Use fewer minibatches, less staleness, or reject samples."
    parameters = (
        Parameter("low", 0.5, "Smallest mean weight"),
        Parameter("high", 2.0, "Largest mean weight"),
        Parameter("size", 0.3, "Smallest effective sample size"),
    )
    metrics = ("importance_weight", "effective_sample_size")
    what = "The deviation of importance weights"
    explanation = "A weight of 1 means that samples come from the policy that is trained."
    as_share = False

    def compared(self, at: MetricLook) -> tuple[float, float]:
        """Return 1 for a value outside of its range, and half: it is inside or outside."""
        lowest, highest = self["low"], self["high"]
        if at.canonical == "effective_sample_size":
            lowest, highest = self["size"], float("inf")
        return 0.0 if lowest <= at.value <= highest else 1.0, 0.5

    def look(self, at: MetricLook) -> list[Signal] | None:
        """Say the value itself."""
        found = super().look(at)
        for signal in found or []:
            signal.title = f"{at.name} is {number_text(at.value)}"
            signal.evidence = [fact(at.name, at.value, "", f"{self['low']:g} to {self['high']:g}")]
        return found


class AbortedResponses(_Limit):
    """Responses are aborted."""

    name = "aborted_responses"
    threshold = "More than {limit} of the responses are aborted, 3 of 5."
    needs = "a metric such as response/aborted_ratio"
    remedy = "Look at the engine's log for the reason; allow aborts only around weight syncs."
    parameters = (Parameter("limit", 0.05, "Share of responses"),)
    metrics = ("aborted_share",)
    what = "The share of aborted responses"
    explanation = "Aborted responses cost time and give no sample."


class Repetition(_Limit):
    """Responses repeat themselves or are garbage."""

    name = "repetition"
    threshold = "More than {limit} of the responses repeat themselves, 3 of 5."
    needs = "a metric such as rollout/repetition_frac"
    remedy = "Roll back, stop repetition in the engine, and check the engine's precision."
    parameters = (Parameter("limit", 0.1, "Share of responses"),)
    metrics = ("repetition_share",)
    what = "The share of repetitive responses"
    explanation = "Repetition up to the cap is the usual end of a collapsed policy."


class SmallEffectiveBatch(_Limit):
    """The effective batch shrinks."""

    name = "small_effective_batch"
    threshold = "More than {limit} of the planned samples are not used, 3 of 5; critical above {critical}."
    needs = "a metric such as effective_batch_ratio"
    remedy = "Find out which filter, mask or error removes most of the samples."
    parameters = (
        Parameter("limit", 0.5, "Share that is not used"),
        Parameter("critical", 0.98, "Share that is critical"),
    )
    metrics = ("valid_share",)
    what = "The unused share of the batch"
    explanation = "The gradient is made of what is left."

    def compared(self, at: MetricLook) -> tuple[float, float]:
        """Return what is not used, and its limit."""
        return 1.0 - at.value, self["limit"]


class ToolFailures(_Limit):
    """Tool calls fail, by the framework's own metric."""

    name = "tool_failures"
    threshold = "More than {limit} of the tool calls fail, 3 of 5."
    needs = "a metric such as tools/failure_frequency"
    remedy = "Retry only infrastructure errors, and repair the environment."
    parameters = (Parameter("limit", 0.05, "Share of calls"),)
    metrics = ("tool_failure_share",)
    what = "The share of failed tool calls"
    explanation = "Healthy runs stay below 5%."


class UselessCritic(_Limit):
    """The critic is useless."""

    name = "useless_critic"
    threshold = "The explained variance is at most {limit} after 50 steps, 3 of 5."
    needs = "a metric such as critic/vf_explained_var"
    remedy = "Warm the critic up, and check its learning rate."
    parameters = (Parameter("limit", 0.0, "Explained variance"),)
    metrics = ("explained_variance",)
    warm_up = 50
    what = "The variance that the critic does not explain"
    explanation = "Its values are no better than the mean reward."

    def compared(self, at: MetricLook) -> tuple[float, float]:
        """Return what is not explained, and its limit."""
        return 1.0 - at.value, 1.0 - self["limit"]


class NoUpdate(MetricRule):
    """The policy is not updated."""

    name = "no_update"
    threshold = "The gradient norm or the learning rate is exactly 0, 3 of 5."
    needs = "a gradient norm or learning rate metric"
    remedy = "Check the schedule, dead groups, and whether the trained layers are attached."
    metrics = ("gradient_norm", "learning_rate")
    rank = 58

    def look(self, at: MetricLook) -> list[Signal] | None:
        """Look for exact zeros; a schedule that ends at 0 is healthy."""
        before = at.track.before(at.number, 20)
        fades = (
            at.canonical == "learning_rate"
            and len(before) > 3
            and before == sorted(before, reverse=True)
            and before[0] > 0
        )
        if at.value != 0.0 or fades:
            return []
        beside = changes(at.model, at.step)
        solved = is_solved(at.model, at.step)
        why = "The tasks are solved: all samples of a group get the same reward." if solved else ""
        why = f"The weights do not change. {why}".strip() + (f" Also: {beside[0]}." if beside else "")
        return at.found(f"{at.name} is exactly 0", why, "info" if solved else "warning", fact(at.name, 0.0))


LIMIT_RULES = (
    Truncation, StaleSamples, ClippingSaturated, DeadGroups, EngineMismatch, ImportanceWeights, AbortedResponses,
    Repetition, SmallEffectiveBatch, ToolFailures, UselessCritic, NoUpdate,
)  # fmt: skip
