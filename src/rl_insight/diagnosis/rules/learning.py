"""How training goes: not-a-number, entropy, KL, gradients, lengths."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import isfinite
from typing import ClassVar

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.robust import median, spearman, theil_sen
from rl_insight.diagnosis.rule import (
    AT_ONCE,
    MetricLook,
    MetricRule,
    Observation,
    Parameter,
    Rule,
    Severity,
    Signal,
    culprit_of,
    fact,
)
from rl_insight.diagnosis.rules.rewards import is_solved, rewards_until
from rl_insight.diagnosis.tracks import Track, TrackPoint
from rl_insight.diagnosis.words import number_text, ratio_text

_FINITE = ("log_prob", "loss", "critic_loss", "gradient_norm", "kl", "entropy", "reward")
"""In the order in which a fault usually reaches them."""
_BASELINE = 30


class NonFinite(Rule):
    """A loss, gradient, KL, entropy or reward is NaN or infinite."""

    name = "non_finite"
    threshold = "One value, without any warm-up. The first metric that turned is named."
    needs = "a loss, gradient norm, KL, entropy or reward metric"
    remedy = "Stop and roll back; check the precision, and that no micro-batch is larger than a rank's share."
    confirmation = AT_ONCE
    rank = 5
    explains = frozenset(
        {"gradient_spike", "entropy_collapse", "entropy_explosion", "kl_blowup", "reward_drop", "no_update"}
    )

    def _begin(self) -> None:
        self._places: dict[str, int] = {}
        self._first: Signal | None = None
        """Who turned first, while values are bad."""
        self._good_steps = 0

    def _lacks(self, model: RunModel) -> str | None:
        if model.metrics.names() & set(_FINITE):
            return None
        return "no metric of training: log loss, grad_norm, kl, entropy or reward"

    def evaluate(self, model: RunModel) -> Iterator[Observation]:
        """Look at every value of the metrics that matter."""
        bad: list[tuple[int, str, Track, TrackPoint]] = []
        newest: dict[int | None, int] = {}
        for canonical in _FINITE:
            for track in model.metrics.all(canonical):
                key = f"{canonical} {track.name}"
                for number, point in track.settled(model.as_of_ns, self._places.get(key, 0)):
                    self._places[key] = number + 1
                    newest[point.step] = max(newest.get(point.step, 0), point.time_ns)
                    if point.bad_process is not None:
                        bad.append((point.bad_ns, canonical, track, point))
        for step, time_ns in sorted(newest.items(), key=lambda item: item[1]):
            of_step = sorted(
                (one for one in bad if one[3].step == step), key=lambda one: (one[0], _FINITE.index(one[1]))
            )
            self._good_steps = 0 if of_step else self._good_steps + 1
            if self._good_steps >= self.confirmation.window:
                self._first = None
            if of_step and self._first is None:
                self._first = self._signal(model, of_step)
            yield Observation(time_ns, step, [self._first] if of_step and self._first else [])

    @staticmethod
    def _signal(model: RunModel, bad: list[tuple[int, str, Track, TrackPoint]]) -> Signal:
        time_ns, _, track, point = bad[0]
        process = model.processes.get(point.bad_process) if point.bad_process is not None else None
        others = [one.name for _, _, one, _ in bad[1:]]
        culprit = {"metric": track.name} | ({} if process is None else culprit_of(process))
        return Signal(
            culprit,
            f"{track.name} is not a number" + (f" at step {point.step}" if point.step is not None else ""),
            "It was the first to turn." + (f" After it: {', '.join(others[:5])}." if others else ""),
            "critical",
            key=("non_finite",),
            start_ns=time_ns,
            metrics=[track.name, *others],
            evidence=[fact("metrics that turned", len(bad))],
        )


class _Baselined(MetricRule):
    """Compares a point with the median of the last good ones."""

    least: ClassVar[int] = 10

    def _begin(self) -> None:
        self._good: dict[str, deque[float]] = {}

    def good(self, canonical: str) -> deque[float]:
        """Return the last good values of a metric."""
        return self._good.setdefault(canonical, deque(maxlen=_BASELINE))

    def look(self, at: MetricLook) -> list[Signal] | None:
        """Compare a point with its baseline."""
        good = self.good(at.canonical)
        if len(good) < self.least:
            good.append(at.value)
            return None
        found = self.compare(at, median(good))
        if not found:
            good.append(at.value)
        return found

    def compare(self, at: MetricLook, usual: float) -> list[Signal]:
        """Return what is wrong with a point."""
        raise NotImplementedError

    @staticmethod
    def found(at: MetricLook, usual: float, title: str, why: str, severity: Severity = "warning") -> list[Signal]:
        """Return a finding about a metric and its baseline."""
        return at.found(title, why, severity, fact(at.name, at.value, "", f"baseline {number_text(usual)}"))


def reward_rises(model: RunModel, step: int | None, window: int = 20) -> bool:
    """Return whether the reward gained at least 2% of its range over the last points up to a step."""
    values = rewards_until(model, step)
    recent = values[-window:]
    if len(recent) < 5:
        return False
    covered = max(values) - min(values)
    return theil_sen(recent) * len(recent) > 0.02 * max(covered, 1e-9)


def reward_gained(model: RunModel, step: int | None) -> bool:
    """Return whether the reward of the last five points is above that of the ten before by 2% of its range."""
    values = rewards_until(model, step)
    if len(values) < 15:
        return False
    return median(values[-5:]) - median(values[-15:-5]) > 0.02 * max(max(values) - min(values), 1e-9)


class EntropyCollapse(_Baselined):
    """The entropy collapses."""

    name = "entropy_collapse"
    threshold = (
        "At most {share} of the median of the first ten points after warm-up, below {ceiling}, still falling over 20 "
        "points, while the reward gains less than 2% of its range; 3 of 5."
    )
    needs = "an entropy metric"
    remedy = "Raise the upper clip, add an entropy bonus or KL-Cov, raise the temperature, or lower the learning rate."
    parameters = (Parameter("share", 0.25, "Share of the early entropy"), Parameter("ceiling", 0.5, "Never above this"))
    metrics = ("entropy",)
    warm_up = 3

    def look(self, at: MetricLook) -> list[Signal] | None:
        """Compare a point with the beginning of the run."""
        good = self.good(at.canonical)
        if len(good) < self.least:
            good.append(at.value)
            return None
        early = median(good)
        if early <= 0 or at.value > min(self["share"] * early, self["ceiling"]):
            return []
        if theil_sen(at.last(20)) >= 0 or reward_rises(at.model, at.step):
            return []
        title = f"The entropy has collapsed from {number_text(early)} to {number_text(at.value)} and still falls"
        why = "The reward does not gain from it, so the policy loses its variety for nothing."
        severity: Severity = "warning"
        if is_solved(at.model, at.step):
            severity, why = "info", "The reward is near the best that a sample can get: the tasks are solved."
        return self.found(at, early, title, why, severity)


class EntropyExplosion(_Baselined):
    """The entropy explodes."""

    name = "entropy_explosion"
    threshold = "At least {factor} times its baseline and {floor}, with a reward that does not rise; 3 of 5."
    needs = "an entropy metric"
    remedy = "Set the entropy coefficient to 0, lower the upper clip, and mask truncated responses."
    parameters = (Parameter("factor", 3, "Compared with the baseline"), Parameter("floor", 1.0, "Never below this"))
    metrics = ("entropy",)

    def compare(self, at: MetricLook, usual: float) -> list[Signal]:
        """Return an entropy that is far above its baseline."""
        if at.value < max(self["factor"] * usual, self["floor"]) or reward_rises(at.model, at.step):
            return []
        title = f"The entropy has risen {ratio_text(at.value / max(usual, 1e-9))} to {number_text(at.value)}"
        return self.found(at, usual, title, "The policy becomes random while the reward does not rise.")


class KlBlowup(_Baselined):
    """The KL divergence blows up."""

    name = "kl_blowup"
    threshold = "At least {factor} times its baseline and above {floor}, 3 of 5."
    needs = "a KL metric"
    remedy = "Lower the learning rate, raise the KL coefficient, or use the k2 or k3 estimator."
    parameters = (Parameter("factor", 10, "Compared with the baseline"), Parameter("floor", 0.1, "Never below this"))
    metrics = ("kl",)
    rank = 54
    explains = frozenset({"reward_drop", "length_explosion", "entropy_explosion"})

    def compare(self, at: MetricLook, usual: float) -> list[Signal]:
        """Return a KL that is far above its baseline."""
        value = at.value
        if value < -self["floor"]:
            title = f"{at.name} is {number_text(value)}: a KL must not be negative"
            return self.found(at, usual, title, "The sign or the estimator is wrong.")
        if value < max(self["factor"] * abs(usual), self["floor"]):
            return []
        title = f"{at.name} has risen {ratio_text(value / max(abs(usual), 1e-9))} to {number_text(value)}"
        severity: Severity = "critical" if value > 100 * max(abs(usual), self["floor"]) else "warning"
        return self.found(at, usual, title, "The policy runs away from its reference.", severity)


class GradientSpike(_Baselined):
    """The gradient norm spikes."""

    name = "gradient_spike"
    threshold = (
        "More than {factor} times the median of the last 30 good points, and {typical} times the largest median of 10 "
        "points in a row so far, 3 of 5; only information where the tasks are solved."
    )
    needs = "a gradient norm metric"
    remedy = "Clip gradients, lower the learning rate, and check the mismatch between trainer and engine first."
    parameters = (
        Parameter("factor", 10, "Compared with the baseline"),
        Parameter("typical", 3, "Compared with the largest median of 10 points in a row"),
    )
    metrics = ("gradient_norm",)
    rank = 54

    def _begin(self) -> None:
        super()._begin()
        self._largest: dict[str, float] = {}
        """By metric: the largest level that its gradients kept up, also during the warm-up."""

    def compare(self, at: MetricLook, usual: float) -> list[Signal]:
        """Return a gradient that is far above its baseline."""
        # Once the tasks are solved gradients are tiny, and a thousand times tiny is what they were before.
        largest = self._largest.get(at.name)
        if largest is None:
            first = at.track.before(at.number, at.number)
            largest = max(median(first[place : place + 10]) for place in range(max(1, len(first) - 9)))
        if usual <= 0 or at.value <= self["factor"] * usual or at.value <= self["typical"] * largest:
            self._largest[at.name] = max(largest, median(list(self.good(self.metrics[0]))[-10:]))
            return []
        self._largest[at.name] = largest
        title = f"{at.name} spikes to {number_text(at.value)}, {ratio_text(at.value / usual)} the usual"
        why = "One such step is noise; several destroy what was learned."
        severity: Severity = "warning"
        if is_solved(at.model, at.step):
            why, severity = "The tasks are solved: the few that fail dominate the gradient.", "info"
        return self.found(at, usual, title, why, severity)


class LengthExplosion(_Baselined):
    """Responses explode in length."""

    name = "length_explosion"
    threshold = (
        "At least {factor} times the median of the last 30 good points, with a reward that does not rise; 3 of 5."
    )
    needs = "a response length metric"
    remedy = "Cap and shape the length, and check for repetition."
    parameters = (Parameter("factor", 2, "Compared with the baseline"),)
    metrics = ("response_length",)
    explains = frozenset({"truncation", "step_regression", "reward_drop"})
    rank = 54

    def compare(self, at: MetricLook, usual: float) -> list[Signal]:
        """Return a length that is far above its baseline."""
        if usual <= 0 or at.value < self["factor"] * usual or reward_gained(at.model, at.step):
            return []
        title = f"Responses are {ratio_text(at.value / usual)} as long as before ({number_text(at.value)} tokens)"
        return self.found(at, usual, title, "The reward does not rise with the length.")


class LengthCollapse(_Baselined):
    """Responses collapse in length."""

    name = "length_collapse"
    threshold = "At most {share} of the median of the last 30 good points, with a reward that does not rise; 3 of 5."
    needs = "a response length metric"
    remedy = "Look at the length penalty and at what the reward pays for."
    parameters = (Parameter("share", 0.25, "Compared with the baseline"),)
    metrics = ("response_length",)
    explains = frozenset({"reward_drop"})
    rank = 54

    def compare(self, at: MetricLook, usual: float) -> list[Signal]:
        """Return a length that is far below its baseline."""
        if at.value > self["share"] * usual or reward_gained(at.model, at.step):
            return []
        title = f"Responses shrank from {number_text(usual)} to {number_text(at.value)} tokens"
        return self.found(at, usual, title, "The reward does not rise with shorter responses.")


class MoeImbalance(_Baselined):
    """Experts of the mixture are loaded unequally."""

    name = "moe_imbalance"
    threshold = "At least {factor} times its baseline, 3 of 5."
    needs = "a metric such as max_vio/mean"
    remedy = "Add an auxiliary loss, or replay the routing of the rollout."
    parameters = (Parameter("factor", 3, "Compared with the baseline"),)
    metrics = ("moe_violation",)

    def compare(self, at: MetricLook, usual: float) -> list[Signal]:
        """Return a load that is far from even."""
        if usual <= 0 or at.value < self["factor"] * usual:
            return []
        title = f"The load of experts is {ratio_text(at.value / usual)} as uneven as before"
        return self.found(at, usual, title, "Compared with the median of the last good steps.")


class MismatchGrowth(MetricRule):
    """The mismatch between trainer and engine grows with the updates."""

    name = "mismatch_growth"
    threshold = "A rise over {points} points (rank correlation {correlation}) to {factor} times the start; 3 of 5."
    needs = "a metric such as training/rollout_probs_diff_mean"
    remedy = "Reset the prefix cache on each update, or salt it by the version."
    parameters = (
        Parameter("points", 20, "Points that are looked at"),
        Parameter("correlation", 0.9, "Rank correlation with time"),
        Parameter("factor", 2, "Compared with the start of the window"),
    )
    metrics = ("probability_difference", "logprob_difference", "mismatch_kl")
    rank = 53

    def look(self, at: MetricLook) -> list[Signal] | None:
        """Look for a steady rise."""
        values = at.last(int(self["points"]))
        if len(values) < self["points"]:
            return None
        first = median(values[:3])
        if not isfinite(first) or spearman(values) < self["correlation"] or values[-1] < self["factor"] * first:
            return []
        return at.found(
            f"{at.name} grows with each update: from {number_text(first)} to {number_text(values[-1])}",
            "A mismatch that grows steadily comes from stale caches on the engine.",
            "warning",
            fact(at.name, values[-1], "", f"{number_text(first)} at the start"),
        )


LEARNING_RULES: tuple[type[Rule], ...] = (
    NonFinite, EntropyCollapse, EntropyExplosion, KlBlowup, GradientSpike, LengthExplosion, LengthCollapse,
    MoeImbalance, MismatchGrowth,
)  # fmt: skip
