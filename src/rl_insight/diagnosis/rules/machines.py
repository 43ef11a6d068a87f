"""GPUs and hosts: throttled, faulty, overloaded, full, leaking, idle."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import pairwise
from operator import itemgetter
from statistics import fmean

from rl_insight.diagnosis.hardware import Device
from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import is_rollout
from rl_insight.diagnosis.robust import median, theil_sen
from rl_insight.diagnosis.rows import SECOND
from rl_insight.diagnosis.rule import GPUS, HOSTS, DeviceRule, Input, Parameter, StepRule
from rl_insight.diagnosis.signals import Signal, culprit_of, fact
from rl_insight.diagnosis.steps import ObservedStep
from rl_insight.words import number_text, seconds_text, share_text, size_text

_WINDOW = Parameter("window_s", 60, "Window, in seconds")


class _Machine(DeviceRule):
    """Judges machines twice per minute, because they change slowly."""

    every_ns = 30 * SECOND
    rank = 9


class ThrottledGpu(_Machine):
    """A GPU is throttled."""

    threshold = (
        "Over {window_s} s at {busy:.0%} utilization or more, its clock is at most {clock:.0%} of the median of its "
        "peers, and it is at {hot} °C or {power:.0%} of its power limit."
    )
    remedy = "Check cooling and the power cap, and drain the machine."
    parameters = (
        _WINDOW,
        Parameter("clock", 0.9, "Clock relative to the median of the peers"),
        Parameter("busy", 0.8, "Minimum utilization"),
        Parameter("hot", 85, "Temperature, in °C"),
        Parameter("power", 0.98, "Share of the power limit"),
    )
    requires = GPUS
    rank = 8
    is_local = True
    explains = frozenset({"straggler", "step_regression", "rollout_bound"})

    def _look(self, model: RunModel) -> list[Signal]:
        since = self._since(model)
        clocks: dict[tuple[str, str], float] = {}
        for key, gpu in model.hardware.gpus.items():
            busy = gpu.between("utilization_ratio", since, model.as_of_ns)
            clock = gpu.between("sm_clock_hertz", since, model.as_of_ns)
            if clock and busy and min(busy) >= self["busy"]:
                clocks[key] = median(clock)
        if len(clocks) < 3:
            return []
        usual = median(clocks.values())
        return [
            self._signal(model.hardware.gpus[key], clock, usual)
            for key, clock in clocks.items()
            if clock <= self["clock"] * usual and self._has_reason(model.hardware.gpus[key])
        ]

    def _has_reason(self, gpu: Device) -> bool:
        hot, power = gpu.latest("temperature_celsius"), gpu.latest("power_watts")
        limit = gpu.latest("power_limit_watts")
        return (hot or 0) >= self["hot"] or (limit is not None and (power or 0) >= self["power"] * limit)

    @staticmethod
    def _signal(gpu: Device, clock: float, usual: float) -> Signal:
        hot = gpu.latest("temperature_celsius") or 0.0
        return Signal(
            {"host": gpu.host, "gpu": gpu.gpu},
            f"GPU {gpu.gpu} on {gpu.host} is throttled to {share_text(clock / usual)} of its peers' clock at "
            f"{hot:.0f} °C",
            "It is as busy as its peers, but runs at a lower clock.",
            anchor="throttled",
            evidence=[
                fact("clock", clock / 1e6, "MHz", f"median {usual / 1e6:.0f} MHz"),
                fact("temperature", hot, "°C"),
            ],
        )


class OverloadedHost(_Machine):
    """A host is overloaded."""

    threshold = "At least {busy:.0%} of all cores are busy in every reading over {window_s} s while its GPUs are idle."
    remedy = "Run fewer workers on the host, pin them, or move the environment elsewhere."
    parameters = (Parameter("busy", 0.95, "Share of busy cores"), _WINDOW)
    requires = HOSTS
    is_local = True
    explains = frozenset({"straggler", "step_regression"})
    devices = "hosts"

    def _judge(self, model: RunModel, device: Device, since: int) -> Signal | None:
        busy = device.between("cpu_utilization_ratio", since, model.as_of_ns)
        history = device.history("cpu_utilization_ratio")
        if len(busy) < 4 or history[0][0] > since or min(busy) < self["busy"]:
            return None
        gpus = [
            value
            for gpu in model.hardware.gpus.values()
            if gpu.host == device.host
            for value in gpu.between("utilization_ratio", since, model.as_of_ns)
        ]
        if not gpus or median(gpus) > 0.5:
            return None
        return Signal(
            {"host": device.host},
            f"{device.host} is overloaded: {share_text(median(busy))} of its cores are busy while its GPUs are idle",
            "The GPUs are waiting for the CPU.",
            anchor="overloaded",
            evidence=[fact("busy cores", median(busy)), fact("GPU utilization", median(gpus))],
        )


class DiskFull(_Machine):
    """A disk is filling up."""

    threshold = (
        "At least {limit:.0%} of the disk is in use, as read in the last {window_s} s; critical at {critical:.0%}."
    )
    remedy = "Remove old checkpoints, and move the spill directory."
    parameters = (
        Parameter("limit", 0.95, "Share in use"),
        Parameter("critical", 0.98, "Share in use that is critical"),
        _WINDOW,
    )
    requires = HOSTS
    devices = "hosts"

    def _judge(self, model: RunModel, device: Device, since: int) -> Signal | None:
        used, total = device.latest("disk_used_bytes"), device.latest("disk_total_bytes")
        is_recent = bool(device.between("disk_used_bytes", since, model.as_of_ns))
        if not is_recent or used is None or not total or used / total < self["limit"]:
            return None
        return Signal(
            {"host": device.host},
            f"The disk of {device.host} is {share_text(used / total)} full",
            "Checkpoints and object spilling will fail.",
            "critical" if used / total >= self["critical"] else "warning",
            anchor="full",
            evidence=[fact("used", used / 2**30, "GiB", size_text(total))],
        )


class MemoryLeak(_Machine):
    """Host memory is leaking."""

    threshold = (
        "More than {now:.0%} of the memory is in use; or it has grown steadily over {window_s} s and will reach 95% "
        "within {hours} h. Names the process that accounts for {process_share:.0%} of the host's growth."
    )
    needs = "host memory; names a process if process memory is recorded too"
    remedy = "Find the process whose resident memory grows; restart it between steps until it is fixed."
    parameters = (
        Parameter("now", 0.93, "Share in use"),
        Parameter("window_s", 1200, "Window of the growth, in seconds"),
        Parameter("hours", 6, "Hours until the limit"),
        Parameter("process_share", 0.5, "Share of the growth that a named process accounts for"),
    )
    requires = HOSTS
    devices = "hosts"

    def _judge(self, model: RunModel, device: Device, since: int) -> Signal | None:
        host = device.host
        total = device.latest("cgroup_memory_limit_bytes") or device.latest("memory_total_bytes")
        name = "cgroup_memory_used_bytes" if device.latest("cgroup_memory_limit_bytes") else "memory_used_bytes"
        history = [point for point in device.history(name) if point[0] >= since]
        if not total or len(history) < 2:
            return None
        used = history[-1][1]
        remaining_s = self._remaining_s(history, total)
        if used / total < self["now"] and (remaining_s is None or remaining_s > self["hours"] * 3600):
            return None
        grows = "" if remaining_s is None else f" and will hit its limit in {seconds_text(max(0.0, remaining_s))}"
        signal = Signal(
            {"host": host},
            f"The memory of {host} is {share_text(used / total)} full{grows}",
            "Ray kills workers at 95%.",
            key=(f"host={host}",),
            anchor="memory",
            evidence=[fact("used", used / 2**30, "GiB", size_text(total))],
        )
        self._add_process(model, since, used - history[0][1], signal)
        return signal

    def _add_process(self, model: RunModel, since: int, grown: float, signal: Signal) -> None:
        """Name the process that grew most, if it accounts for enough of the host's growth."""
        by_process = {}
        for number, device in model.hardware.processes.items():
            readings = device.between("resident_memory_bytes", since, model.as_of_ns)
            if model.processes[number].host == signal.culprit["host"] and len(readings) > 1:
                by_process[number] = readings[-1] - readings[0]
        worst = max(by_process, key=by_process.__getitem__, default=None)
        if worst is None or by_process[worst] <= 0 or by_process[worst] < self["process_share"] * grown:
            return
        process = model.processes[worst]
        signal.culprit = culprit_of(process)
        signal.title += f"; {process.title} grew by {size_text(by_process[worst])}"
        signal.lanes = model.lanes_of(worst)
        signal.evidence.append(
            fact(f"growth of {process.title}", by_process[worst] / 2**30, "GiB", f"host {size_text(grown)}")
        )

    def _remaining_s(self, history: list[tuple[int, float]], total: float) -> float | None:
        """Return the time until memory is 95% full, by its slope; None if it does not grow steadily."""
        span_s = (history[-1][0] - history[0][0]) / SECOND
        if span_s < 0.8 * self["window_s"] or len(history) < 20:
            return None
        thinned = [value for _, value in history[:: max(1, len(history) // 40)]]
        slope = theil_sen(thinned) * len(thinned) / span_s
        rises = sum(1 for one, other in pairwise(thinned) if other > one)
        grown = thinned[-1] - thinned[0]
        if slope <= 0 or rises < 0.8 * (len(thinned) - 1) or grown < 0.05 * total:
            return None
        return (0.95 * total - thinned[-1]) / slope


class GpuMemoryCreep(_Machine):
    """GPU memory creeps up to its limit."""

    threshold = (
        "At least {limit:.0%} of the memory is in use in every reading over {window_s} s, up by more than {rise:.0%} "
        "of the memory since the first readings."
    )
    remedy = (
        "Empty the cache between phases, lower the engine's share, and turn off expandable segments with sleep mode."
    )
    parameters = (
        Parameter("limit", 0.97, "Share in use"),
        Parameter("rise", 0.1, "Growth since the first readings, as a share of the memory"),
        _WINDOW,
    )
    requires = GPUS
    devices = "gpus"

    def _judge(self, model: RunModel, device: Device, since: int) -> Signal | None:
        total = device.latest("memory_total_bytes")
        used = device.between("memory_used_bytes", since, model.as_of_ns)
        history = device.history("memory_used_bytes")
        if not total or len(used) < 4 or len(history) < 20 or min(used) < self["limit"] * total:
            return None
        before = median([value for _, value in history[:10]])
        if median(used) - before < self["rise"] * total:
            return None
        return Signal(
            {"host": device.host, "gpu": device.gpu},
            f"The memory of GPU {device.gpu} on {device.host} is {share_text(median(used) / total)} full",
            f"It was {share_text(before / total)} full at first.",
            anchor="memory",
            evidence=[fact("used", median(used) / 2**30, "GiB", size_text(total))],
        )


class GpuFault(_Machine):
    """A GPU reports a fault."""

    threshold = "Any error code other than 0."
    remedy = "Drain the machine and look up the code."
    parameters = (_WINDOW,)
    requires = Input(
        lambda model: model.metrics.track("gpu_errors"), "DCGM or NPU metrics", "register the exporter as a target"
    )
    rank = 1
    explains = frozenset({"straggler", "dead_engine", "stalled_run", "collective_hang", "step_regression"})

    def _look(self, model: RunModel) -> list[Signal]:
        track = model.metrics.track("gpu_errors")
        since = self._since(model)
        recent = [] if track is None else [p for p in track.points[-20:] if p.time_ns > since and p.count]
        bad = [point for point in recent if point.maximum > 0]
        if track is None or not bad:
            return []
        return [Signal({"metric": track.name}, f"{track.name} reports error {number_text(bad[-1].maximum)}",
                       "The driver reported a hardware fault.", "critical", metrics=[track.name], anchor="fault",
                       evidence=[fact(track.name, bad[-1].maximum)])]  # fmt: skip


class GpuIdleInRollout(StepRule):
    """GPUs are idle during rollout."""

    threshold = (
        "The GPUs of a host are below {limit:.0%} on average while its processes generate, by at least {readings} "
        "readings over the last 5 steps, and below {peers:.0%} of the median of the hosts if there are several; in 3 "
        "of 5 steps."
    )
    needs = "GPU utilization, and generation states of the rollout"
    remedy = "Raise the concurrency, turn off eager mode, or add agent workers; check tools if sessions wait for them."
    parameters = (
        Parameter("limit", 0.3, "Mean utilization"),
        Parameter("peers", 0.6, "Utilization relative to the median of the hosts"),
        Parameter("readings", 10, "Minimum number of readings"),
    )
    requires = GPUS
    rank = 62

    def _begin(self) -> None:
        self._steps: deque[dict[str, list[float]]] = deque(maxlen=5)

    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        self._steps.append(self._readings(model, step))
        if step is not model.new_steps[-1]:
            return None  # the windows of steps that close together overlap: the last one covers them all
        hosts = {host for one in self._steps for host in one}
        readings = {host: [value for one in self._steps for value in one.get(host, [])] for host in sorted(hosts)}
        means = {host: fmean(values) for host, values in readings.items() if len(values) >= self["readings"]}
        if not means:
            return None
        usual = median(means.values())
        are_several = len(means) > 1
        compared_with = f"median of the hosts {share_text(usual)}" if are_several else "no other host"
        found = [
            Signal(
                {"host": host},
                f"The GPUs of {host} are only {share_text(mean)} busy while its rollout generates",
                f"Compared with the {compared_with}." if are_several else "There is no other host to compare it with.",
                "warning" if are_several else "info",
                evidence=[fact("utilization", mean, "", compared_with)],
            )
            for host, mean in means.items()
            if mean < self["limit"] and not (are_several and mean > self["peers"] * usual)
        ]
        return found if 2 * len(found) <= len(means) or not are_several else []

    def _readings(self, model: RunModel, step: ObservedStep) -> dict[str, list[float]]:
        """Return each host's readings in a step while it generated."""
        hosts = {gpu.host for gpu in model.hardware.gpus.values()}
        rollouts = {
            process.number: process.host
            for process in model.workers()
            if process.host in hosts and is_rollout(process.role) and process.number in model.activity
        }
        busy = model.activity.busy_by_group(rollouts, step.start_ns, step.end_ns + 1)
        found: dict[str, list[float]] = {}
        for gpu in model.hardware.gpus.values():
            intervals = busy.get(gpu.host, [])
            for time_ns, value in gpu.points("utilization_ratio", step.start_ns, step.end_ns) if intervals else ():
                place = bisect_right(intervals, time_ns, key=itemgetter(0)) - 1
                if place >= 0 and time_ns < intervals[place][1]:
                    found.setdefault(gpu.host, []).append(value)
        return found


MACHINE_RULES = (GpuFault, ThrottledGpu, OverloadedHost, DiskFull, MemoryLeak, GpuMemoryCreep)
