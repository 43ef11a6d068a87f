"""Metrics with a limit: each rule is a limit that a value must not cross in 3 of 5 steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.rule import MetricRule, Parameter, Severity, Signal, fact
from rl_insight.diagnosis.rules.rewards import changes, is_solved
from rl_insight.diagnosis.tracks import Track, TrackPoint
from rl_insight.diagnosis.words import number_text, share_text


class _Limit(MetricRule):
    """A value above a limit; with `critical`, far above it."""

    what: ClassVar[str]
    explanation: ClassVar[str]
    as_share: ClassVar[bool] = True
    base_severity: ClassVar[Severity] = "warning"

    def limit_of(self, canonical: str) -> float:
        """Return the limit for a metric."""
        del canonical
        return self["limit"]

    def measured(self, canonical: str, point: TrackPoint) -> float:
        """Return what is compared with the limit."""
        del canonical
        return point.value

    def look(
        self, model: RunModel, canonical: str, track: Track, number: int, point: TrackPoint
    ) -> list[Signal] | None:
        """Compare a point with its limit."""
        del model, number
        value, limit = self.measured(canonical, point), self.limit_of(canonical)
        if value <= limit:
            return []
        text = share_text if self.as_share else number_text
        critical = self._values.get("critical")
        severity: Severity = "critical" if critical is not None and value > critical else self.base_severity
        return [
            Signal(
                {"metric": track.name},
                f"{self.what} is {text(value)}, above {text(limit)}",
                self.explanation,
                severity,
                metrics=[track.name],
                evidence=[fact(track.name, value, "", f"limit {text(limit)}")],
            )
        ]


class Truncation(_Limit):
    """Responses hit the length cap."""

    name = "truncation"
    pathology = "Responses are truncated."
    threshold = "More than {limit} of the responses are truncated, 3 of 5; critical above {critical}."
    needs = "a metric such as response_length/clip_ratio or completions/clipped_ratio"
    remedy = "Raise the cap, shape the reward of overlong responses, or filter the prompts."
    parameters = (Parameter("limit", 0.1, "Share of responses"), Parameter("critical", 0.5, "Share that is critical"))
    metrics = ("truncated_share",)
    what = "The share of truncated responses"
    explanation = "Truncated responses get no reward for their answer, and their gradient is noise."


class StaleSamples(_Limit):
    """Samples are too old."""

    name = "stale_samples"
    pathology = "Samples are stale."
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

    def limit_of(self, canonical: str) -> float:
        """Return the limit for the mean or the maximum."""
        return self["mean"] if canonical == "staleness_mean" else self["largest"]


class ClippingSaturated(_Limit):
    """Most of the updates are clipped."""

    name = "clipping_saturated"
    pathology = "Clipping saturates."
    threshold = "More than {limit} of the tokens are clipped, 3 of 5."
    needs = "a metric such as actor/pg_clipfrac or clip_ratio/region_mean"
    remedy = "Use fewer inner epochs, a lower learning rate, or fresher samples."
    parameters = (Parameter("limit", 0.5, "Share of clipped tokens"),)
    metrics = ("clip_fraction",)
    what = "The share of clipped tokens"
    explanation = "Usual values are between 0.001 and 0.05."


class DeadGroups(_Limit):
    """Groups whose samples all get the same reward."""

    name = "dead_groups"
    pathology = "Most groups have one reward and teach nothing."
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

    def measured(self, canonical: str, point: TrackPoint) -> float:
        """Return the share of dead groups."""
        return point.value if canonical == "dead_group_share" else 1.0 - point.value

    def look(
        self, model: RunModel, canonical: str, track: Track, number: int, point: TrackPoint
    ) -> list[Signal] | None:
        """Add whether the tasks are too easy or too hard."""
        found = super().look(model, canonical, track, number, point)
        reward = model.metrics.track("reward")
        level = None if reward is None else reward.at(point.step)
        for signal in found or []:
            if level is None:
                continue
            easy = is_solved(model, point.step, self["easy"])
            why = "the tasks are too easy" if easy else "the tasks are too hard, or the verifier is broken"
            signal.explanation += f" The mean reward is {number_text(level)}: {why}."
            if easy:
                is_done = signal.severity == "warning" or is_solved(model, point.step)
                signal.severity = "info" if is_done else "warning"
        return found


class EngineMismatch(_Limit):
    """Trainer and engine disagree about probabilities."""

    name = "engine_mismatch"
    pathology = "Trainer and inference engine disagree about log-probabilities."
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

    def limit_of(self, canonical: str) -> float:
        """Return the limit for a way to measure it."""
        names = {"probability_difference": "probability", "logprob_difference": "logprob", "mismatch_kl": "kl"}
        return self[names[canonical]]


class ImportanceWeights(_Limit):
    """Importance weights far from one."""

    name = "importance_weights"
    pathology = "Importance weights are off."
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

    def measured(self, canonical: str, point: TrackPoint) -> float:
        """Return how far a value is outside of its range; 0 inside."""
        if canonical == "effective_sample_size":
            return 1.0 if point.value < self["size"] else 0.0
        return 1.0 if not self["low"] <= point.value <= self["high"] else 0.0

    def limit_of(self, canonical: str) -> float:
        """Return half: a value is inside or outside."""
        del canonical
        return 0.5

    def look(
        self, model: RunModel, canonical: str, track: Track, number: int, point: TrackPoint
    ) -> list[Signal] | None:
        """Say the value itself."""
        found = super().look(model, canonical, track, number, point)
        for signal in found or []:
            signal.title = f"{track.name} is {number_text(point.value)}"
            signal.evidence = [fact(track.name, point.value, "", f"{self['low']:g} to {self['high']:g}")]
        return found


class AbortedResponses(_Limit):
    """Responses are aborted."""

    name = "aborted_responses"
    pathology = "Responses are aborted."
    threshold = "More than {limit} of the responses are aborted, 3 of 5."
    needs = "a metric such as response/aborted_ratio"
    remedy = "Look at the engine's log for the reason; allow aborts only around weight syncs."
    parameters = (Parameter("limit", 0.05, "Share of responses"),)
    metrics = ("aborted_share",)
    what = "The share of aborted responses"
    explanation = "Aborted responses cost time and give no sample."


class Repetition(_Limit):
    """Responses repeat themselves."""

    name = "repetition"
    pathology = "Responses repeat themselves or are garbage."
    threshold = "More than {limit} of the responses repeat themselves, 3 of 5."
    needs = "a metric such as rollout/repetition_frac"
    remedy = "Roll back, stop repetition in the engine, and check the engine's precision."
    parameters = (Parameter("limit", 0.1, "Share of responses"),)
    metrics = ("repetition_share",)
    what = "The share of repetitive responses"
    explanation = "Repetition up to the cap is the usual end of a collapsed policy."


class SmallEffectiveBatch(_Limit):
    """Few of the planned samples are trained on."""

    name = "small_effective_batch"
    pathology = "The effective batch shrinks."
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

    def measured(self, canonical: str, point: TrackPoint) -> float:
        """Return what is not used."""
        del canonical
        return 1.0 - point.value


class ToolFailures(_Limit):
    """Tool calls fail, as a metric says."""

    name = "tool_failures"
    pathology = "Tool calls fail, by the framework's own metric."
    threshold = "More than {limit} of the tool calls fail, 3 of 5."
    needs = "a metric such as tools/failure_frequency"
    remedy = "Retry only infrastructure errors, and repair the environment."
    parameters = (Parameter("limit", 0.05, "Share of calls"),)
    metrics = ("tool_failure_share",)
    what = "The share of failed tool calls"
    explanation = "Healthy runs stay below 5%."


class UselessCritic(_Limit):
    """The critic explains nothing."""

    name = "useless_critic"
    pathology = "The critic is useless."
    threshold = "The explained variance is at most {limit} after 50 steps, 3 of 5."
    needs = "a metric such as critic/vf_explained_var"
    remedy = "Warm the critic up, and check its learning rate."
    parameters = (Parameter("limit", 0.0, "Explained variance"),)
    metrics = ("explained_variance",)
    warm_up = 50
    what = "The variance that the critic does not explain"
    explanation = "Its values are no better than the mean reward."

    def measured(self, canonical: str, point: TrackPoint) -> float:
        """Return how far the value is below its limit."""
        del canonical
        return 1.0 - point.value

    def limit_of(self, canonical: str) -> float:
        """Return the limit for what is not explained."""
        del canonical
        return 1.0 - self["limit"]


class NoUpdate(MetricRule):
    """Nothing is learned."""

    name = "no_update"
    pathology = "The policy is not updated."
    threshold = "The gradient norm or the learning rate is exactly 0, 3 of 5."
    needs = "a gradient norm or learning rate metric"
    remedy = "Check the schedule, dead groups, and whether the trained layers are attached."
    metrics = ("gradient_norm", "learning_rate")
    rank = 58

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        super().__init__(values)
        self._was_positive: set[str] = set()

    def look(
        self, model: RunModel, canonical: str, track: Track, number: int, point: TrackPoint
    ) -> list[Signal] | None:
        """Look for exact zeros; a schedule that ends at 0 is healthy."""
        if point.value > 0:
            self._was_positive.add(canonical)
        before = track.before(number, 20)
        fades = (
            canonical == "learning_rate"
            and len(before) > 3
            and before == sorted(before, reverse=True)
            and before[0] > 0
        )
        if point.value != 0.0 or fades:
            return []
        beside = changes(model, point.step)
        solved = is_solved(model, point.step)
        why = "The tasks are solved: all samples of a group get the same reward." if solved else ""
        return [
            Signal(
                {"metric": track.name},
                f"{track.name} is exactly 0",
                f"The weights do not change. {why}".strip() + (f" Also: {beside[0]}." if beside else ""),
                "info" if solved else "warning",
                metrics=[track.name],
                evidence=[fact(track.name, 0.0)],
            )
        ]


LIMIT_RULES = (
    Truncation, StaleSamples, ClippingSaturated, DeadGroups, EngineMismatch, ImportanceWeights, AbortedResponses,
    Repetition, SmallEffectiveBatch, ToolFailures, UselessCritic, NoUpdate,
)  # fmt: skip
