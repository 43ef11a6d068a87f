"""What only a comparison shows: engine against trainer, held-out scores against rewards, noise against trend."""

from __future__ import annotations

from collections import deque
from statistics import fmean, stdev

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.robust import median, noise, spearman
from rl_insight.diagnosis.rule import Confirmation, MetricLook, MetricRule, Parameter, Signal, StepRule, fact
from rl_insight.diagnosis.steps import Step
from rl_insight.diagnosis.words import number_text, share_text


class MismatchAfterSync(MetricRule):
    """The mismatch between trainer and engine jumped at a weight update."""

    name = "mismatch_after_sync"
    threshold = "{factor} times the median of the points before, and above {smallest}; 3 of 5."
    needs = "a metric such as training/rollout_probs_diff_mean"
    remedy = "The engine loaded the update wrongly: check its weight layout, quantization and sleep level; reload it."
    parameters = (
        Parameter("factor", 5, "Multiple of the points before the jump"),
        Parameter("smallest", 0.01, "Smallest value that matters"),
    )
    metrics = ("probability_difference", "logprob_difference", "mismatch_kl")
    warm_up = 3
    rank = 51
    explains = frozenset({
        "engine_mismatch", "importance_weights", "mismatch_growth", "entropy_explosion", "gradient_spike",
        "clipping_saturated",
    })  # fmt: skip

    def _begin(self) -> None:
        self._healthy: dict[str, deque[float]] = {}

    def look(self, at: MetricLook) -> list[Signal] | None:
        """Compare a point with the healthy ones before it."""
        healthy = self._healthy.setdefault(at.canonical, deque(maxlen=30))
        before = median(healthy) if len(healthy) >= 3 else None
        if before is None or at.value < self["factor"] * before or at.value < self["smallest"]:
            healthy.append(at.value)
            return None if before is None else []
        return at.found(
            f"{at.name} jumped from {number_text(before)} to {number_text(at.value)} at a weight update",
            "A jump that stays comes from how the engine loaded the new weights, not from the policy.",
            "critical",
            fact(at.name, at.value, "", f"{number_text(before)} before"),
        )


class RewardHacking(MetricRule):
    """The training reward rises while held-out scores fall: the policy may be exploiting the reward."""

    name = "reward_hacking"
    threshold = (
        "The last two evaluations fell, to {drop} below the best and by {noise} times their noise, while the training "
        "reward rose over {points} steps; a warning from {severe} below the best, information before."
    )
    needs = "a reward, and evaluations such as val-core/*, eval/* or validation/accuracy"
    remedy = "Read samples with the highest rewards; fix the reward, raise the KL coefficient, or stop early."
    parameters = (
        Parameter("drop", 0.1, "Share of the best score that was lost"),
        Parameter("severe", 0.3, "Lost share that is a warning"),
        Parameter("noise", 4, "Multiple of the noise of the evaluations"),
        Parameter("points", 30, "Training steps in which the reward rose"),
        Parameter("evaluations", 5, "Fewest evaluations"),
    )
    metrics = ("held_out",)
    warm_up = 0
    confirmation = Confirmation(2, 2)

    def look(self, at: MetricLook) -> list[Signal] | None:
        """Compare the last evaluations with the training reward."""
        scores = at.last(31)
        reward = at.model.metrics.track("reward")
        if reward is None or len(scores) < self["evaluations"]:
            return None
        gained = [one.value for one in reward.points[-int(self["points"]) :] if one.count]
        # Medians of three: the best of many noisy evaluations is high by chance.
        smooth = [median(scores[at : at + 3]) for at in range(len(scores) - 2)]
        best = max(smooth)
        lost = best - smooth[-1]
        is_low = max(scores[-2:]) < median(scores[:-2]) - noise(scores[:-2])
        has_fallen = is_low and scores[-1] < scores[-2] < scores[-3] and lost > self["noise"] * noise(scores[:-2])
        has_risen = len(gained) >= self["points"] and spearman(gained) > 0.7
        if best <= 0 or not has_fallen or not has_risen or lost < self["drop"] * best:
            return []
        found = at.found(
            f"{at.name} fell from {number_text(best)} to {number_text(scores[-1])} while {reward.name} rose to "
            f"{number_text(gained[-1])}",
            "What the policy learns raises the training reward and not what the evaluation measures.",
            "warning" if lost >= self["severe"] * best else "info",
            fact(at.name, scores[-1], "", f"best {number_text(best)}"),
            fact(reward.name, gained[-1], "", f"{number_text(gained[0])} before"),
        )
        found[0].metrics.append(reward.name)
        return found


class NoisyReward(MetricRule):
    """The mean reward of steps varies so much that no trend can be seen."""

    name = "noisy_reward"
    threshold = "Standard deviation above {variation} of the mean over {points} steps without a trend; information."
    needs = "a reward metric that is never negative"
    remedy = "Use larger batches or more samples per prompt, or normalize the reward."
    parameters = (
        Parameter("variation", 0.5, "Standard deviation as a share of the mean"),
        Parameter("points", 20, "Steps that are looked at"),
        Parameter("trend", 0.3, "Largest rank correlation with time that counts as no trend"),
    )
    metrics = ("reward",)

    def look(self, at: MetricLook) -> list[Signal] | None:
        """Compare the variation of the last steps with their mean."""
        values = at.last(int(self["points"]))
        if len(values) < self["points"] or min(values) < 0 or fmean(values) <= 0:
            return None
        variation = stdev(values) / fmean(values)
        if variation <= self["variation"] or abs(spearman(values)) > self["trend"]:
            return []
        return at.found(
            f"{at.name} varies by {share_text(variation)} of its mean from step to step, without a trend",
            "Progress that is smaller than this noise cannot be seen, and gradients point in random directions.",
            "info",
            fact("variation", variation, "", f"over {len(values)} steps"),
        )


class StaleEngineWeights(StepRule):
    """The policy is not updated on the engine: syncs take place, and sessions keep their old model version."""

    name = "stale_engine_weights"
    threshold = "The newest model version of finished sessions has not advanced over {syncs} steps with a weight sync."
    needs = "sessions with numeric model versions, and weight-sync states"
    remedy = "Check that the engine applies the update: its sleep level, its weight names, and the version it reports."
    parameters = (
        Parameter("syncs", 5, "Steps with a weight sync"),
        Parameter("advanced", 3, "How often the version must have advanced before"),
    )
    confirmation = Confirmation(1, 1)
    rank = 24
    explains = frozenset({"stale_samples", "engine_mismatch", "mismatch_growth", "importance_weights"})

    def _begin(self) -> None:
        self._newest = -1
        self._advanced = 0
        self._syncs = 0

    def _lacks(self, model: RunModel) -> str | None:  # noqa: ARG002
        return "no numeric model versions: pass model_version to rl_insight.session" if self._newest < 0 else None

    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Count the syncs since the version last advanced."""
        finished = model.sessions_between(step.start_ns, step.end_ns)
        versions = [int(text) for one in finished if (text := one.model_version or "").isdecimal()]
        if not versions:
            return None
        if max(versions) > self._newest:
            self._advanced += 1
            self._newest, self._syncs = max(versions), 0
            return []
        self._syncs += "sync" in step.kind
        if self._advanced < self["advanced"] or self._syncs < self["syncs"]:
            return []
        return [
            Signal(
                {"phase": "sync"},
                f"The engine still generates with version {self._newest} after {self._syncs} weight syncs",
                "Sessions that finish now were generated with the same weights as before these syncs.",
                "critical",
                key=("engine",),
                anchor=f"version {self._newest}",
                evidence=[fact("syncs since the version advanced", self._syncs), fact("version", self._newest)],
            )
        ]


EVALUATION_RULES = (MismatchAfterSync, RewardHacking, NoisyReward, StaleEngineWeights)
