"""GPUs that idle while the processes of their host generate."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping

from rl_insight.diagnosis.hardware import Device
from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import is_rollout
from rl_insight.diagnosis.robust import Interval, median, recent, union
from rl_insight.diagnosis.rows import NEVER
from rl_insight.diagnosis.rule import Parameter, Severity, Signal, StepRule, fact
from rl_insight.diagnosis.rules.machines import NO_GPUS
from rl_insight.diagnosis.steps import Step
from rl_insight.diagnosis.words import share_text


class IdleGpus(StepRule):
    """GPUs of the rollout idle while it generates."""

    name = "gpu_idle_in_rollout"
    pathology = "GPUs idle during rollout."
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

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        super().__init__(values)
        self._steps: deque[dict[str, tuple[float, int]]] = deque(maxlen=5)

    def missing(self, model: RunModel) -> str | None:
        """Return what the run lacks for this rule."""
        if not model.hardware.gpus:
            return NO_GPUS
        return super().missing(model)

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
        by_host: dict[str, list[Device]] = {}
        for gpu in model.hardware.gpus.values():
            by_host.setdefault(gpu.host, []).append(gpu)
        found = {}
        for host, windows in self._generating(model, step.start_ns, step.end_ns).items():
            values = [
                value
                for gpu in by_host.get(host, ())
                for moment, value in gpu.points("utilization_ratio", step.start_ns, step.end_ns)
                if _is_inside(windows, moment)
            ]
            found[host] = (sum(values), len(values))
        return found

    @staticmethod
    def _generating(model: RunModel, start_ns: int, end_ns: int) -> dict[str, list[Interval]]:
        """Return when at least one process of each host was generating."""
        hosts: dict[str, list[Interval]] = {}
        for process in model.workers():
            if is_rollout(process.role) and process.number in model.activity:
                hosts.setdefault(process.host, []).extend(recent(model.activity[process.number].busy, start_ns, end_ns))
        return {host: union(intervals) for host, intervals in hosts.items()}


def _is_inside(windows: list[Interval], moment: int) -> bool:
    """Return whether a moment lies in one of many windows that are in order and do not overlap."""
    place = bisect_right(windows, (moment, NEVER)) - 1
    return place >= 0 and moment < windows[place][1]
