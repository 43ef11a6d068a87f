"""Uneven work: across ranks because of the data, across replicas because of the router."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import median, quantile
from rl_insight.diagnosis.role_steps import RoleStep
from rl_insight.diagnosis.rule import PERSISTENT, Input, Parameter, RoleRule
from rl_insight.diagnosis.signals import Observation, Signal, culprit_of, fact, saving, where
from rl_insight.diagnosis.steps import WARM_UP_STEPS
from rl_insight.words import ratio_text, seconds_text, share_text


class DataImbalance(RoleRule):
    """Work is spread unevenly across ranks: a different rank is slowest in each step."""

    threshold = (
        "The slowest rank takes {ratio} times the median in an update or log-probability state, the interquartile "
        "range is {spread:.0%} of the median, and at least three different ranks were slowest within 5 steps; or the "
        "rank with the most tokens has {tokens_ratio} times as many as the rank with the fewest."
    )
    remedy = "Turn on sequence balancing, dynamic batch sizes or sequence packing."
    parameters = (
        Parameter("ratio", 1.33, "Slowest rank relative to the median"),
        Parameter("spread", 0.15, "Interquartile range relative to the median"),
        Parameter("tokens_ratio", 1.25, "Most tokens of a rank relative to the fewest, after balancing"),
        Parameter("share", 0.05, "Excess as a share of the step"),
    )
    requires = Input(
        lambda model: model.largest_role() > 2 or model.metrics.track("sequence_length_max"),
        "update states of at least three ranks, or metrics such as global_seqlen/balanced_max",
    )
    rank = 60
    warm_up, by_lane = 0, True

    def _begin(self) -> None:
        self._slowest: dict[str, deque[int]] = {}
        self._point = 0

    def evaluate(self, model: RunModel) -> Iterator[Observation]:
        """Look at the spread of each role in each step, and at its metrics."""
        yield from super().evaluate(model)
        yield from self._tokens(model)

    def _look(self, model: RunModel, role_step: RoleStep, step_s: float) -> list[Signal]:  # noqa: ARG002
        found = []
        for name, seconds in role_step.seconds.items():
            if state_kind(name) not in {"update", "log_prob"} or len(seconds) < 3:
                continue
            values = list(seconds.values())
            usual_s, slow_s = median(values), max(values)
            spread = (quantile(values, 0.75) - quantile(values, 0.25)) / max(usual_s, 1e-9)
            turns = self._slowest.setdefault(f"{role_step.role} {name}", deque(maxlen=5))
            is_wide = slow_s >= self["ratio"] * usual_s and spread >= self["spread"]
            if not is_wide or slow_s - usual_s < self["share"] * step_s:
                turns.append(-1)
                continue
            turns.append(max(seconds, key=seconds.__getitem__))
            if len(set(turns) - {-1}) >= 3:
                found.append(
                    Signal(
                        {"role": role_step.role, "phase": name},
                        f"{name} is uneven across the {role_step.role} ranks: the slowest takes "
                        f"{ratio_text(slow_s / usual_s)} as long as the median",
                        "A different rank is slowest in each step, so it is the data and not a machine.",
                        "info",
                        impact=saving(slow_s - usual_s, step_s),
                        evidence=[
                            fact("slowest rank", slow_s, "s", f"median {seconds_text(usual_s)}"),
                            fact("spread", spread),
                        ],
                    )
                )
        return found

    def _tokens(self, model: RunModel) -> Iterator[Observation]:
        most, fewest = model.metrics.track("sequence_length_max"), model.metrics.track("sequence_length_min")
        if most is None or fewest is None:
            return
        for number, point in most.settled(model.as_of_ns, self._point):
            self._point = number + 1
            low = fewest.at(point.step)
            if low is None or number < WARM_UP_STEPS:
                continue
            ratio = point.value / max(low, 1.0)
            signals = []
            if ratio >= self["tokens_ratio"]:
                text = f"Tokens are uneven across ranks: the largest share is {ratio_text(ratio)} the smallest"
                signals.append(
                    Signal({"metric": most.name}, text, "The shares differ even after balancing.", "info",
                           metrics=[most.name, fewest.name],
                           evidence=[fact("largest", point.value, "tokens"), fact("smallest", low, "tokens")])
                )  # fmt: skip
            yield Observation(point.time_ns, point.step, signals, family="tokens")


class ReplicaImbalance(RoleRule):
    """Replicas are loaded unevenly."""

    threshold = "A rollout process generates for less than {share:.0%} of the median of its peers, in 4 of 5 steps."
    remedy = "Route requests to the least loaded replica, and check the data-parallel balancer."
    parameters = (Parameter("share", 0.5, "Busy time relative to the median of the peers"),)
    requires = Input(lambda model: model.largest_role() > 2, "generation states of at least three processes of a role")
    confirmation = PERSISTENT
    rank = 48

    def _look(self, model: RunModel, role_step: RoleStep, step_s: float) -> list[Signal]:
        usual = {
            name: median(seconds.values())
            for name, seconds in role_step.seconds.items()
            if state_kind(name) == "generate" and len(seconds) >= 3
        }
        signals = [
            self._signal(model, unit, name, value, usual_s)
            for name, usual_s in usual.items()
            if usual_s > 0.1 * step_s
            for unit, value in role_step.seconds[name].items()
            if value < self["share"] * usual_s
        ]
        return signals if len(signals) * 3 <= len(model.workers()) else []

    @staticmethod
    def _signal(model: RunModel, unit: int, name: str, busy_s: float, usual_s: float) -> Signal:
        process = model.processes[unit]
        return Signal(
            culprit_of(process, phase=name),
            f"{where(process)} is underused: it generates for {seconds_text(busy_s)} per step, its peers for "
            f"{seconds_text(usual_s)} ({share_text(busy_s / usual_s)})",
            "The other replicas do its share: requests are not spread evenly.",
            key=(process.process_id,),
            lanes=model.lanes_of(unit),
            evidence=[fact("busy", busy_s, "s", f"median of the role {seconds_text(usual_s)}")],
        )
