"""Learning dynamics: NaN, entropy, KL, gradients, lengths."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.robust import median, spearman, theil_sen
from rl_insight.diagnosis.rule import AT_ONCE, BaselineRule, Input, MetricLook, MetricRule, Parameter, Rule
from rl_insight.diagnosis.rules.rewards import is_solved, rewards_until
from rl_insight.diagnosis.signals import Observation, Signal, culprit_of, fact
from rl_insight.diagnosis.tracks import Track, TrackPoint
from rl_insight.schema.names import Severity
from rl_insight.words import number_text, ratio_text

_FINITE = ("loss", "critic_loss", "gradient_norm", "kl", "entropy", "reward")
"""In the order in which a fault usually reaches them."""


class NonFinite(Rule):
    """A loss, gradient, KL, entropy or reward is NaN or infinite."""

    threshold = "A single value, without any warm-up. Names the first metric affected."
    remedy = "Stop and roll back; check the precision, and that no micro-batch is larger than a rank's share."
    requires = Input(
        lambda model: model.metrics.names() & set(_FINITE),
        "training metrics",
        "log loss, grad_norm, kl, entropy or reward",
    )
    confirmation = AT_ONCE
    rank = 5
    explains = frozenset(
        {"gradient_spike", "entropy_collapse", "entropy_explosion", "kl_blowup", "reward_drop", "no_update"}
    )

    def _begin(self) -> None:
        self._places: dict[str, int] = {}
        self._first: Signal | None = None
        """The first metric affected, while values are bad."""
        self._good_steps = 0

    def evaluate(self, model: RunModel) -> Iterator[Observation]:
        """Look at every new value of the metrics that matter."""
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
        return Signal(
            {"metric": track.name} | ({} if process is None else culprit_of(process)),
            f"{track.name} is not a number" + (f" at step {point.step}" if point.step is not None else ""),
            "It was the first metric to do so." + (f" Then came {', '.join(others[:5])}." if others else ""),
            "critical",
            key=("non_finite",),
            start_ns=time_ns,
            metrics=[track.name, *others],
            evidence=[fact("metrics affected", len(bad))],
        )


def reward_rises(model: RunModel, step: int | None, window: int = 20) -> bool:
    """Return whether the reward gained at least 2% of its range over the last points up to a step."""
    values = rewards_until(model, step)
    recent = values[-window:]
    if len(recent) < 5:
        return False
    covered = max(values) - min(values)
    return theil_sen(recent) * len(recent) > 0.02 * max(covered, 1e-9)


def reward_gained(model: RunModel, step: int | None) -> bool:
    """Return whether the last five rewards are above the ten before by 2% of the reward's range, by their medians."""
    values = rewards_until(model, step)
    if len(values) < 15:
        return False
    return median(values[-5:]) - median(values[-15:-5]) > 0.02 * max(max(values) - min(values), 1e-9)


class EntropyCollapse(BaselineRule):
    """Entropy is collapsing."""

    threshold = (
        "At most {share:.0%} of the median of the first ten points after the warm-up, below {ceiling}, and still "
        "falling over 20 points, while the reward gains less than 2% of its range; in 3 of 5 steps."
    )
    remedy = "Raise the upper clip, add an entropy bonus or KL-Cov, raise the temperature, or lower the learning rate."
    parameters = (
        Parameter("share", 0.25, "Share of the early entropy"),
        Parameter("ceiling", 0.5, "Only below this value"),
    )
    metrics = ("entropy",)
    warm_up = 3
    learns = False

    def _compare(self, at: MetricLook, usual: float) -> list[Signal]:
        if usual <= 0 or at.value > min(self["share"] * usual, self["ceiling"]):
            return []
        if theil_sen(at.last(20)) >= 0 or reward_rises(at.model, at.step):
            return []
        title = f"Entropy has collapsed from {number_text(usual)} to {number_text(at.value)} and is still falling"
        if is_solved(at.model, at.step):
            return self._found(
                at, usual, title, "The reward is close to the best possible: the tasks are solved.", "info"
            )
        why = "Entropy is collapsing without any reward gain: the policy is losing diversity for nothing."
        return self._found(at, usual, title, why)


class EntropyExplosion(BaselineRule):
    """Entropy is exploding."""

    threshold = "At least {factor} times its baseline and at least {floor}, without a rising reward; in 3 of 5 steps."
    remedy = "Set the entropy coefficient to 0, lower the upper clip, and mask truncated responses."
    parameters = (Parameter("factor", 3, "Relative to the baseline"), Parameter("floor", 1.0, "Only above this value"))
    metrics = ("entropy",)

    def _compare(self, at: MetricLook, usual: float) -> list[Signal]:
        if at.value < max(self["factor"] * usual, self["floor"]) or reward_rises(at.model, at.step):
            return []
        title = f"Entropy has risen {ratio_text(at.value / max(usual, 1e-9))} to {number_text(at.value)}"
        return self._found(at, usual, title, "The policy is becoming random, and the reward is not rising.")


class KlBlowup(BaselineRule):
    """The KL divergence is blowing up."""

    threshold = "At least {factor} times its baseline and above {floor}, in 3 of 5 steps."
    remedy = "Lower the learning rate, raise the KL coefficient, or use the k2 or k3 estimator."
    parameters = (Parameter("factor", 10, "Relative to the baseline"), Parameter("floor", 0.1, "Only above this value"))
    metrics = ("kl",)
    rank = 54
    explains = frozenset({"reward_drop", "length_explosion", "entropy_explosion"})

    def _compare(self, at: MetricLook, usual: float) -> list[Signal]:
        value = at.value
        if value < -self["floor"]:
            title = f"{at.name} is {number_text(value)}, but a KL cannot be negative"
            return self._found(at, usual, title, "The sign or the estimator is wrong.")
        if value < max(self["factor"] * abs(usual), self["floor"]):
            return []
        title = f"{at.name} has risen {ratio_text(value / max(abs(usual), 1e-9))} to {number_text(value)}"
        severity: Severity = "critical" if value > 100 * max(abs(usual), self["floor"]) else "warning"
        return self._found(at, usual, title, "The policy is running away from its reference.", severity)


class GradientSpike(BaselineRule):
    """The gradient norm is spiking."""

    threshold = (
        "More than {factor} times the median of the last 30 good points, and {typical} times the largest median of any "
        "10 consecutive points so far, in 3 of 5 steps; only info if the tasks are solved."
    )
    remedy = "Check the mismatch between trainer and engine first; clip gradients, or lower the learning rate."
    parameters = (
        Parameter("factor", 10, "Relative to the baseline"),
        Parameter("typical", 3, "Relative to the largest median of 10 consecutive points"),
    )
    metrics = ("gradient_norm",)
    rank = 54

    def _begin(self) -> None:
        self._largest: dict[str, float] = {}
        """By metric: the largest sustained level of its gradients, including the warm-up."""

    def _compare(self, at: MetricLook, usual: float) -> list[Signal]:
        # Once the tasks are solved gradients are tiny, and a thousand times tiny is what they were before.
        largest = self._largest.get(at.name)
        if largest is None:
            first = at.track.before(at.number, at.number)
            largest = max(median(first[place : place + 10]) for place in range(max(1, len(first) - 9)))
        if usual <= 0 or at.value <= self["factor"] * usual or at.value <= self["typical"] * largest:
            self._largest[at.name] = max(largest, median(list(self._good[at.canonical])[-10:]))
            return []
        self._largest[at.name] = largest
        title = f"{at.name} spikes to {number_text(at.value)}, {ratio_text(at.value / usual)} its baseline"
        if is_solved(at.model, at.step):
            why = "The tasks are solved: the few failing samples dominate the gradient."
            return self._found(at, usual, title, why, "info")
        return self._found(at, usual, title, "One such step is noise; several undo what was learned.")


class LengthExplosion(BaselineRule):
    """Response length is exploding."""

    threshold = (
        "At least {factor} times the median of the last 30 good points, without a rising reward; in 3 of 5 steps."
    )
    remedy = "Cap the length, penalize overlong responses, and check for repetition."
    parameters = (Parameter("factor", 2, "Relative to the baseline"),)
    metrics = ("response_length",)
    explains = frozenset({"truncation", "step_regression", "reward_drop"})
    rank = 54

    def _compare(self, at: MetricLook, usual: float) -> list[Signal]:
        if usual <= 0 or at.value < self["factor"] * usual or reward_gained(at.model, at.step):
            return []
        title = f"Responses are {ratio_text(at.value / usual)} as long as before ({number_text(at.value)} tokens)"
        return self._found(at, usual, title, "The longer responses bring no reward gain.")


class LengthCollapse(BaselineRule):
    """Response length is collapsing."""

    threshold = (
        "At most {share:.0%} of the median of the last 30 good points, without a rising reward; in 3 of 5 steps."
    )
    remedy = "Check the length penalty and what the reward pays for."
    parameters = (Parameter("share", 0.25, "Relative to the baseline"),)
    metrics = ("response_length",)
    explains = frozenset({"reward_drop"})
    rank = 54

    def _compare(self, at: MetricLook, usual: float) -> list[Signal]:
        if at.value > self["share"] * usual or reward_gained(at.model, at.step):
            return []
        title = f"Responses shrank from {number_text(usual)} to {number_text(at.value)} tokens"
        return self._found(at, usual, title, "The shorter responses bring no reward gain.")


class MoeImbalance(BaselineRule):
    """Experts are loaded unevenly."""

    threshold = "At least {factor} times its baseline, in 3 of 5 steps."
    remedy = "Add an auxiliary loss, or replay the routing of the rollout."
    parameters = (Parameter("factor", 3, "Relative to the baseline"),)
    metrics = ("moe_violation",)

    def _compare(self, at: MetricLook, usual: float) -> list[Signal]:
        if usual <= 0 or at.value < self["factor"] * usual:
            return []
        title = f"Expert load is {ratio_text(at.value / usual)} as uneven as before"
        return self._found(at, usual, title, "Compared with the median of the last good steps.")


class MismatchGrowth(MetricRule):
    """The mismatch between trainer and engine grows with each update."""

    threshold = (
        "Rises over {points} points (rank correlation {correlation}) to {factor} times the start; in 3 of 5 steps."
    )
    remedy = "Reset the prefix cache on each update, or salt it with the version."
    parameters = (
        Parameter("points", 20, "Points in the window"),
        Parameter("correlation", 0.9, "Rank correlation with time"),
        Parameter("factor", 2, "Relative to the start of the window"),
    )
    metrics = ("probability_difference", "logprob_difference", "mismatch_kl")
    rank = 53

    def _look(self, at: MetricLook) -> list[Signal] | None:
        values = at.last(int(self["points"]))
        if len(values) < self["points"]:
            return None
        first = median(values[:3])
        if not isfinite(first) or spearman(values) < self["correlation"] or values[-1] < self["factor"] * first:
            return []
        return at.found(
            f"{at.name} grows with each update: from {number_text(first)} to {number_text(values[-1])}",
            "A steadily growing mismatch comes from stale caches on the engine.",
            "warning",
            fact(at.name, values[-1], "", f"{number_text(first)} at the start"),
        )


class MismatchAfterSync(BaselineRule):
    """The mismatch between trainer and engine jumped at a weight update."""

    threshold = "At least {factor} times the median of the points before, and at least {smallest}; in 3 of 5 steps."
    remedy = (
        "The engine loaded the update incorrectly: check its weight layout, quantization and sleep level; reload it."
    )
    parameters = (
        Parameter("factor", 5, "Relative to the points before the jump"),
        Parameter("smallest", 0.01, "Minimum value that matters"),
    )
    metrics = ("probability_difference", "logprob_difference", "mismatch_kl")
    warm_up = 3
    least = 3
    rank = 51
    explains = frozenset({
        "engine_mismatch", "importance_weights", "mismatch_growth", "entropy_explosion", "gradient_spike",
        "clipping_saturated",
    })  # fmt: skip

    def _compare(self, at: MetricLook, usual: float) -> list[Signal]:
        if at.value < self["factor"] * usual or at.value < self["smallest"]:
            return []
        title = f"{at.name} jumped from {number_text(usual)} to {number_text(at.value)} at a weight update"
        why = "A lasting jump comes from how the engine loaded the new weights, not from the policy."
        return self._found(at, usual, title, why, "critical")


LEARNING_RULES: tuple[type[Rule], ...] = (
    NonFinite, EntropyCollapse, EntropyExplosion, KlBlowup, GradientSpike, LengthExplosion, LengthCollapse,
    MoeImbalance, MismatchGrowth,
)  # fmt: skip
