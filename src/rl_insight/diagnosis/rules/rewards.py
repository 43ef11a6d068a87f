"""The reward: verifiers that fail silently, rewards that never change, rewards that fall."""

from __future__ import annotations

from collections import deque
from itertools import islice
from math import ceil, log

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import coarse_noise, median, noise
from rl_insight.diagnosis.rule import MetricLook, MetricRule, Parameter, Rule, Severity, Signal, StepRule, fact
from rl_insight.diagnosis.rules.calls import ToolErrors
from rl_insight.diagnosis.steps import Step
from rl_insight.diagnosis.words import number_text, share_text

_LEAST_REWARDS = 20
_SOLVED = 0.85
_SOLVED_POINTS = 5
_RECENT_SESSIONS = 2_000


def changes(model: RunModel, step: int | None, window: int = 5) -> list[str]:
    """Return what else changed at a step, in words: learning rate, KL, entropy, length, gradients, configuration."""
    found: list[str] = []
    if step is None:
        return found
    for canonical, factor in (
        ("learning_rate", 1.5),
        ("kl", 3.0),
        ("gradient_norm", 3.0),
        ("entropy", 1.5),
        ("response_length", 1.5),
    ):
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
    return found + told_changes(model, step)


def told_changes(model: RunModel, step: int | None) -> list[str]:
    """Return what the run itself told of near a step: a change of its configuration, another stage of a curriculum."""
    if step is None:
        return []
    near = [
        event
        for event in model.events
        if event.step is not None and abs(event.step - step) <= 2 and event.name != "alert"
    ]
    return [f"{event.name} at step {event.step}: {event.text[:100]}" for event in near]


def rewards_until(model: RunModel, step: int | None) -> list[float]:
    """Return the mean rewards up to a step; of all steps for None."""
    track = model.metrics.track("reward")
    points = [] if track is None else track.points
    return [p.value for p in points if p.count and (step is None or p.step is None or p.step <= step)]


def is_solved(model: RunModel, step: int | None, share: float = _SOLVED) -> bool:
    """Return whether the reward is near the best that a sample can get: then little is left to learn.

    The best is the highest reward of a session; without sessions, 1 where the mean reward never exceeded it.
    """
    values = rewards_until(model, step)
    if len(values) < _SOLVED_POINTS:
        return False
    recent = islice(reversed(model.sessions), _RECENT_SESSIONS)
    rewards = [session.reward for session in recent if session.reward is not None]
    best = max(rewards, default=1.0 if max(values) <= 1.0 else float("inf"))
    return best > 0 and median(values[-_SOLVED_POINTS:]) >= share * best


class RewardDrop(MetricRule):
    """The reward falls and stays low."""

    name = "reward_drop"
    threshold = (
        "The reward is below the median of the last 10 good steps by {deviations} standard deviations, {range_share} "
        "of the range it has covered and {share} of the median, 3 of 5; only information where the run told of a "
        "change there, such as another stage of a curriculum."
    )
    needs = "a reward metric"
    remedy = "Roll back to before the drop; undo what changed there, and check the verifier on known answers."
    parameters = (
        Parameter("deviations", 5, "Standard deviations below the baseline"),
        Parameter("range_share", 0.2, "Share of the range of the reward so far"),
        Parameter("share", 0.1, "Share of the baseline"),
    )
    metrics = ("reward",)
    rank = 55

    def _begin(self) -> None:
        self._good: deque[float] = deque(maxlen=30)
        self._lowest = float("inf")
        self._highest = float("-inf")
        self._bad: list[tuple[int | None, float]] = []

    def look(self, at: MetricLook) -> list[Signal] | None:
        """Compare a point with the good ones before."""
        value = at.value
        self._lowest, self._highest = min(self._lowest, value), max(self._highest, value)
        if len(self._good) < 10:
            self._good.append(value)
            return None
        usual = median(list(self._good)[-10:])
        needed = max(
            self["deviations"] * coarse_noise(self._good),
            self["range_share"] * (self._highest - self._lowest),
            self["share"] * abs(usual),
            1e-6,
        )
        if value > usual - needed:
            self._good.append(value)
            if self._bad and len(self._bad) < 3:
                self._bad.clear()
            return []
        self._bad.append((at.step, value))
        first = self._bad[0][0]
        now = median([one for _, one in self._bad[-5:]])
        beside = changes(at.model, first)
        also = f"; at the same time {beside[0]}" if beside else ""
        text = "" if not beside else " At the same step: " + "; ".join(beside) + "."
        return at.found(
            f"The reward fell from {number_text(usual)} to {number_text(now)} at step {first}{also}",
            f"Compared with the median of the last 10 good steps.{text}",
            "info" if told_changes(at.model, first) else "warning",
            fact("reward", now, "", f"baseline {number_text(usual)}"),
            fact("noise of the baseline", coarse_noise(self._good)),
        )


class FailingReward(StepRule):
    """A judge or verifier fails silently."""

    name = "failing_reward"
    threshold = (
        "More than {share} of the reward phases in the last 5 steps fail; or the share of zero rewards jumps by {jump} "
        "while entropy, length, KL and learning rate do not change; 3 of 5."
    )
    needs = "reward phases of sessions, or sessions with their reward"
    remedy = "Respect the judge's rate limit, retry, and mark failed samples instead of scoring them 0."
    parameters = (
        Parameter("share", 0.05, "Share of failed reward phases"),
        Parameter("least", 5, "Fewest failed phases"),
        Parameter("critical", 0.5, "Share of failed phases that is critical"),
        Parameter("chance", 1e-5, "Chance of so many failures in a healthy reward"),
        Parameter("jump", 0.25, "Rise of the share of zero rewards"),
    )
    rank = 43
    explains = frozenset({"reward_drop", "constant_reward", "dead_groups", "entropy_explosion", "no_update"})

    def _begin(self) -> None:
        self._errors = _RewardErrors(self._values)
        self._zero: deque[float] = deque(maxlen=30)
        self._first: int | None = None

    def _lacks(self, model: RunModel) -> str | None:
        if any(state_kind(name) == "reward" for name, _ in model.call_book.by_tool) or any(
            session.reward is not None for session in list(model.sessions)[-50:]
        ):
            return None
        return "no reward phases and no sessions with rewards: use rl_insight.phase and session.finalize(reward=...)"

    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Look at errors first, then at zeros."""
        failing = self._errors.look(model, step)
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
            return []  # the policy changed: its rewards fell for another reason
        return [
            Signal(
                {"phase": "reward"},
                f"The share of zero rewards jumped from {share_text(before)} to {share_text(share)} at step "
                f"{self._first}",
                "Entropy, length, KL and learning rate did not change, so the policy is the same: the verifier fails.",
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
    """The counting of failed calls, for reward phases."""

    kind = "reward"
    noun = "reward calls"


class ConstantReward(MetricRule):
    """The reward is constant."""

    name = "constant_reward"
    threshold = (
        "The mean reward changes by less than {change} over {steps} steps, or over as many as make it less likely "
        "than {chance} where the value was frequent before."
    )
    needs = "a reward metric"
    remedy = "Test the verifier on gold answers, and look at the template of the prompt."
    parameters = (
        Parameter("change", 1e-6, "Largest change of the mean"),
        Parameter("steps", 5, "Steps without a change"),
        Parameter("chance", 1e-5, "Chance that so many rewards are equal, by how often the value was seen before"),
    )
    metrics = ("reward",)
    warm_up = 4
    rank = 51
    explains = frozenset({"reward_drop", "dead_groups", "no_update"})

    def look(self, at: MetricLook) -> list[Signal] | None:
        """Compare a point with those before it."""
        needed = self._needed(at)
        values = at.last(needed)
        if len(values) < needed or max(values) - min(values) > self["change"]:
            return []
        saturated = abs(at.value - 1.0) < 1e-9 and at.number > 20
        from_start = at.number - len(values) < 3
        severity: Severity = "critical" if from_start and not saturated else "info" if saturated else "warning"
        title = f"The reward has been {number_text(at.value)} for {len(values)} steps without any change"
        why = "A reward that never changes teaches nothing."
        return at.found(title, why, severity, fact("reward", at.value), fact("steps", len(values)))

    def _needed(self, at: MetricLook) -> int:
        """Return how many equal values are too many: the mean of few samples is often the same by chance."""
        least = int(self["steps"])
        before = at.track.before(at.number - least + 1, 200)
        often = sum(1 for one in before if abs(one - at.value) <= self["change"]) / max(1, len(before))
        if not before or often == 0.0:
            return least
        return max(least, min(100, ceil(log(self["chance"]) / log(min(often, 0.99)))))


REWARD_RULES: tuple[type[Rule], ...] = (FailingReward, RewardDrop, ConstantReward)
