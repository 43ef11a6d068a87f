"""GPUs that idle while the processes of their host generate."""

from __future__ import annotations

from collections import deque

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import is_rollout
from rl_insight.diagnosis.robust import Interval, median
from rl_insight.diagnosis.rule import Parameter, Severity, Signal, StepRule, fact
from rl_insight.diagnosis.rules.machines import NO_GPUS
from rl_insight.diagnosis.steps import Step
from rl_insight.diagnosis.words import share_text


class IdleGpus(StepRule):
    """GPUs idle during rollout."""

    name = "gpu_idle_in_rollout"
    threshold = (
        "The GPUs of a host are below {limit} on average while its processes generate, with at least {readings} "
        "readings over the last 5 steps, and below {peers} of the other hosts' where there are others; 3 of 5."
    )
    needs = "GPU utilization, and generation states of the rollout"
    remedy = "Raise the concurrency, leave eager mode, or add agent workers; look at tools if sessions wait for them."
    parameters = (
        Parameter("limit", 0.3, "Mean utilization"),
        Parameter("peers", 0.6, "Compared with the median of the other hosts"),
        Parameter("readings", 10, "Fewest readings"),
    )
    rank = 62

    def _begin(self) -> None:
        self._steps: deque[dict[str, tuple[float, int]]] = deque(maxlen=5)

    def _lacks(self, model: RunModel) -> str | None:
        return None if model.hardware.gpus else NO_GPUS

    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Join GPUs with the generation of their hosts over the last steps."""
        self._steps.append(self._readings(model, step))
        if step is not model.new_steps[-1]:
            return None  # several steps in one moment overlap: the last one says it all
        sums: dict[str, tuple[float, int]] = {}
        for one in self._steps:
            for host, (total, count) in one.items():
                before = sums.get(host, (0.0, 0))
                sums[host] = (before[0] + total, before[1] + count)
        means = {host: total / count for host, (total, count) in sums.items() if count >= self["readings"]}
        if not means:
            return None
        usual = median(means.values())
        found = []
        for host, mean in means.items():
            if mean >= self["limit"] or (len(means) > 1 and mean > self["peers"] * usual):
                continue
            severity: Severity = "warning" if len(means) > 1 else "info"
            compared = f"median of the hosts {share_text(usual)}" if len(means) > 1 else ""
            found.append(
                Signal(
                    {"host": host},
                    f"The GPUs of {host} are {share_text(mean)} busy while its rollout generates",
                    f"Other hosts reach {share_text(usual)}."
                    if len(means) > 1
                    else "There is no other host to compare with.",
                    severity,
                    evidence=[fact("utilization", mean, "", compared)],
                )
            )
        return found if 2 * len(found) <= len(means) or len(means) == 1 else []

    def _readings(self, model: RunModel, step: Step) -> dict[str, tuple[float, int]]:
        """Return the sum and the number of each host's readings in a step while it generated."""
        hosts = {gpu.host for gpu in model.hardware.gpus.values()}
        rollouts = {
            process.number: process.host
            for process in model.workers()
            if process.host in hosts and is_rollout(process.role) and process.number in model.activity
        }
        with_states = set(rollouts.values())
        busy = model.activity.busy_by_group(rollouts, step.start_ns, step.end_ns + 1)
        # The GPUs of a host are read at the same moments, which are few: look each of them up once.
        generating: dict[tuple[str, int], bool] = {}
        found: dict[str, tuple[float, int]] = {}
        for gpu in model.hardware.gpus.values():
            if gpu.host not in with_states:
                continue
            total, count = found.get(gpu.host, (0.0, 0))
            for moment, value in gpu.points("utilization_ratio", step.start_ns, step.end_ns):
                key = (gpu.host, moment)
                if key not in generating:
                    generating[key] = _is_inside(busy.get(gpu.host, []), moment)
                if generating[key]:
                    total, count = total + value, count + 1
            found[gpu.host] = (total, count)
        return found


def _is_inside(intervals: list[Interval], moment: int) -> bool:
    """Return whether a moment near the end lies in one of many intervals that are in order."""
    for start, end in reversed(intervals):
        if end <= moment:
            return False
        if start <= moment:
            return True
    return False
