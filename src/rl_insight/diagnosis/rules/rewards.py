"""Rewards: verifiers that fail silently; rewards that never change, drop, are gamed, or are all noise."""

from __future__ import annotations

from collections import deque
from itertools import islice
from math import ceil, log
from statistics import fmean, stdev

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import coarse_noise, median, noise, spearman
from rl_insight.diagnosis.rule import (
    BaselineRule,
    Confirmation,
    Input,
    MetricLook,
    MetricRule,
    Parameter,
    Rule,
    StepRule,
)
from rl_insight.diagnosis.rules.calls import ToolErrors
from rl_insight.diagnosis.signals import Signal, fact
from rl_insight.diagnosis.steps import ObservedStep
from rl_insight.schema.names import Severity
from rl_insight.words import number_text, share_text

_LEAST_REWARDS = 20
_SOLVED = 0.85
_SOLVED_POINTS = 5
_RECENT_SESSIONS = 2_000
_CHANGED = {"learning_rate": 1.5, "kl": 3.0, "gradient_norm": 3.0, "entropy": 1.5, "response_length": 1.5}
"""Metric to the factor by which it must rise or fall to have changed."""


def changes(model: RunModel, step: int | None, window: int = 5) -> list[str]:
    """Describe what else changed at a step: learning rate, KL, entropy, length, gradients, configuration."""
    found: list[str] = []
    if step is None:
        return found
    for canonical, factor in _CHANGED.items():
        track = model.metrics.track(canonical)
        if track is None:
            continue
        before = [value for one in range(step - 10, step) if (value := track.at(one)) is not None]
        after = [value for one in range(step, step + window) if (value := track.at(one)) is not None]
        if len(before) < 3 or not after:
            continue
        old, new = median(before), median(after)
        if old > 0 and new > 0 and (new > factor * old or new < old / factor):
            found.append(f"{track.name} went from {number_text(old)} to {number_text(new)}")
    return found + reported_changes(model, step)


def reported_changes(model: RunModel, step: int | None) -> list[str]:
    """Return changes that the run itself reported near a step, such as a new configuration or curriculum stage."""
    if step is None:
        return []
    near = [
        event
        for event in model.events
        if event.step is not None and abs(event.step - step) <= 2 and event.name != "alert"
    ]
    return [f"{event.name} at step {event.step}: {event.text[:100]}" for event in near]


def rewards_until(model: RunModel, step: int | None) -> list[float]:
    """Return the mean rewards up to a step; all if it is None."""
    track = model.metrics.track("reward")
    points = [] if track is None else track.points
    return [p.value for p in points if p.count and (step is None or p.step is None or p.step <= step)]


def is_solved(model: RunModel, step: int | None, share: float = _SOLVED) -> bool:
    """Return whether the reward is close to the best a sample can get, so that little is left to learn.

    The best is the highest reward of a session; without sessions, 1 where the mean reward never exceeded it.
    """
    values = rewards_until(model, step)
    if len(values) < _SOLVED_POINTS:
        return False
    recent = islice(reversed(model.sessions), _RECENT_SESSIONS)
    rewards = [session.reward for session in recent if session.reward is not None]
    best = max(rewards, default=1.0 if max(values) <= 1.0 else float("inf"))
    return best > 0 and median(values[-_SOLVED_POINTS:]) >= share * best


class RewardDrop(BaselineRule):
    """The reward drops and stays low."""

    threshold = (
        "The reward is below the median of the last 10 good steps by {deviations} standard deviations, "
        "{range_share:.0%} of its range so far and {share:.0%} of the median, in 3 of 5 steps; only info if the run "
        "reported a change there, such as a new curriculum stage."
    )
    remedy = "Roll back to before the drop; undo what changed there, and check the verifier on known answers."
    parameters = (
        Parameter("deviations", 5, "Standard deviations below the baseline"),
        Parameter("range_share", 0.2, "Share of the range of the reward so far"),
        Parameter("share", 0.1, "Share of the baseline"),
    )
    metrics = ("reward",)
    recent = 10
    rank = 55

    def _begin(self) -> None:
        self._lowest = float("inf")
        self._highest = float("-inf")
        self._bad: list[tuple[int | None, float]] = []

    def _look(self, at: MetricLook) -> list[Signal] | None:
        self._lowest, self._highest = min(self._lowest, at.value), max(self._highest, at.value)
        return super()._look(at)

    def _compare(self, at: MetricLook, usual: float) -> list[Signal]:
        spread = coarse_noise(self._good[at.canonical])
        needed = max(
            self["deviations"] * spread,
            self["range_share"] * (self._highest - self._lowest),
            self["share"] * abs(usual),
            1e-6,
        )
        if at.value > usual - needed:
            if len(self._bad) < 3:
                self._bad.clear()
            return []
        self._bad.append((at.step, at.value))
        first = self._bad[0][0]
        now = median([one for _, one in self._bad[-5:]])
        also = changes(at.model, first)
        return at.found(
            f"The reward dropped from {number_text(usual)} to {number_text(now)} at step {first}"
            + (f"; at the same time: {also[0]}" if also else ""),
            "Compared with the median of the last 10 good steps."
            + (f" At the same step: {'; '.join(also)}." if also else ""),
            "info" if reported_changes(at.model, first) else "warning",
            fact("reward", now, "", f"baseline {number_text(usual)}"),
            fact("noise of the baseline", spread),
        )


class FailingReward(StepRule):
    """A judge or verifier is failing silently."""

    threshold = (
        "More than {share:.0%} of the reward phases in the last 5 steps fail; or the share of zero rewards rises by "
        "{jump} while entropy, length, KL and learning rate stay the same; in 3 of 5 steps."
    )
    remedy = "Respect the judge's rate limit, retry, and mark failed samples instead of scoring them 0."
    parameters = (
        Parameter("share", 0.05, "Share of failed reward phases"),
        Parameter("least", 5, "Minimum number of failed phases"),
        Parameter("critical", 0.5, "Share of failed phases that is critical"),
        Parameter("chance", 1e-5, "Probability of this many failures in a healthy reward"),
        Parameter("jump", 0.25, "Rise of the share of zero rewards"),
    )
    requires = Input(
        lambda model: (
            any(state_kind(name) == "reward" for name, _ in model.call_book.by_tool)
            or any(session.reward is not None for session in list(model.sessions)[-50:])
        ),
        "reward phases of sessions, or sessions with a reward",
        "use rl_insight.phase and session.finalize(reward=...)",
    )
    rank = 43
    explains = frozenset({"reward_drop", "constant_reward", "dead_groups", "entropy_explosion", "no_update"})

    def _begin(self) -> None:
        self._errors = _RewardErrors(self._values)
        self._zero: deque[float] = deque(maxlen=30)
        self._first: int | None = None

    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        failing = self._errors._look(model, step)
        if failing:
            return failing
        closed = model.steps.closed[-3:]
        rewards = [
            session.reward
            for session in model.sessions_between(closed[0].start_ns, step.end_ns)
            if session.reward is not None
        ]
        if len(rewards) < _LEAST_REWARDS:
            return None
        share = sum(1 for reward in rewards if reward == 0) / len(rewards)
        if len(self._zero) < 10:
            self._zero.append(share)
            return None
        before = median(list(self._zero)[-10:])
        if share < before + max(self["jump"], 4 * noise(self._zero)):
            self._zero.append(share)
            if share < before + self["jump"] / 2:
                self._first = None
            return []
        self._first = step.number if self._first is None else self._first
        if changes(model, self._first):
            return []  # the policy changed: rewards dropped for another reason
        return [
            Signal(
                {"phase": "reward"},
                f"The share of zero rewards jumped from {share_text(before)} to {share_text(share)} at step "
                f"{self._first}",
                "Entropy, length, KL and learning rate did not change, so it is the verifier and not the policy.",
                "warning",
                key=("zeros",),
                metrics=["reward"],
                evidence=[
                    fact("zero rewards", share, "", f"{share_text(before)} before"),
                    fact("rewards", len(rewards)),
                ],
            )
        ]


class _RewardErrors(ToolErrors):
    kind = "reward"
    noun = "{} calls"


class ConstantReward(MetricRule):
    """The reward is constant."""

    threshold = (
        "The mean reward changes by less than {change} over {steps} steps; if the value was frequent before, over "
        "enough steps that the probability of chance is at most {chance}."
    )
    remedy = "Test the verifier on gold answers, and check the prompt template."
    parameters = (
        Parameter("change", 1e-6, "Maximum change of the mean"),
        Parameter("steps", 5, "Steps without a change"),
        Parameter("chance", 1e-5, "Probability of this many equal rewards, by how often the value was seen before"),
    )
    metrics = ("reward",)
    warm_up = 4
    rank = 51
    explains = frozenset({"reward_drop", "dead_groups", "no_update"})

    def _look(self, at: MetricLook) -> list[Signal] | None:
        needed = self._needed(at)
        values = at.last(needed)
        if len(values) < needed or max(values) - min(values) > self["change"]:
            return []
        saturated = abs(at.value - 1.0) < 1e-9 and at.number > 20
        from_start = at.number - len(values) < 3
        severity: Severity = "critical" if from_start and not saturated else "info" if saturated else "warning"
        title = f"The reward has been exactly {number_text(at.value)} for {len(values)} steps"
        why = "A reward that never changes teaches nothing."
        return at.found(title, why, severity, fact("reward", at.value), fact("steps", len(values)))

    def _needed(self, at: MetricLook) -> int:
        """Return how many equal values are too many: the mean of a few samples is often the same by chance."""
        least = int(self["steps"])
        before = at.track.before(at.number - least + 1, 200)
        often = sum(1 for one in before if abs(one - at.value) <= self["change"]) / max(1, len(before))
        if not before or often == 0.0:
            return least
        return max(least, min(100, ceil(log(self["chance"]) / log(min(often, 0.99)))))


class RewardHacking(MetricRule):
    """The training reward rises while held-out scores fall: the policy may be gaming the reward."""

    threshold = (
        "The last two evaluations fell, to {drop:.0%} below the best and by {noise} times their noise, while the "
        "training reward rose over {points} steps: info; a warning at {severe:.0%} below the best."
    )
    needs = "a reward, and evaluations such as val-core/*, eval/* or validation/accuracy"
    remedy = "Read the samples with the highest rewards; fix the reward, raise the KL coefficient, or stop early."
    parameters = (
        Parameter("drop", 0.1, "Drop relative to the best score"),
        Parameter("severe", 0.3, "Drop that is a warning"),
        Parameter("noise", 4, "Multiple of the noise of the evaluations"),
        Parameter("points", 30, "Training steps over which the reward rose"),
        Parameter("evaluations", 5, "Minimum number of evaluations"),
    )
    metrics = ("held_out",)
    warm_up = 0
    confirmation = Confirmation(2, 2)

    def _look(self, at: MetricLook) -> list[Signal] | None:
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
            "The policy is learning something that raises the training reward but not the evaluation score.",
            "warning" if lost >= self["severe"] * best else "info",
            fact(at.name, scores[-1], "", f"best {number_text(best)}"),
            fact(reward.name, gained[-1], "", f"{number_text(gained[0])} before"),
        )
        found[0].metrics.append(reward.name)
        return found


class NoisyReward(MetricRule):
    """The mean reward varies so much between steps that no trend is visible."""

    threshold = "The standard deviation is above {variation:.0%} of the mean over {points} steps without a trend: info."
    needs = "a reward metric that is never negative"
    remedy = "Use larger batches or more samples per prompt, or normalize the reward."
    parameters = (
        Parameter("variation", 0.5, "Standard deviation as a share of the mean"),
        Parameter("points", 20, "Steps in the window"),
        Parameter("trend", 0.3, "Maximum rank correlation with time that counts as no trend"),
    )
    metrics = ("reward",)

    def _look(self, at: MetricLook) -> list[Signal] | None:
        values = at.last(int(self["points"]))
        if len(values) < self["points"] or min(values) < 0 or fmean(values) <= 0:
            return None
        variation = stdev(values) / fmean(values)
        if variation <= self["variation"] or abs(spearman(values)) > self["trend"]:
            return []
        return at.found(
            f"{at.name} varies by {share_text(variation)} of its mean from step to step, without a trend",
            "Progress smaller than this noise is invisible, and gradients point in random directions.",
            "info",
            fact("variation", variation, "", f"over {len(values)} steps"),
        )


REWARD_RULES: tuple[type[Rule], ...] = (FailingReward, RewardDrop, ConstantReward)
