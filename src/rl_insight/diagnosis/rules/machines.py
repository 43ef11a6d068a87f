"""GPUs and hosts: throttled, faulty, overloaded, full, leaking, idle."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import ClassVar

from rl_insight.diagnosis.hardware import Device
from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.robust import median, theil_sen
from rl_insight.diagnosis.rows import SECOND
from rl_insight.diagnosis.rule import MomentRule, Observation, Parameter, Severity, Signal, culprit_of, fact
from rl_insight.diagnosis.words import number_text, seconds_text, share_text

NO_GPUS = "no GPU metrics: install rl-insight[nvml], or let Ray's dashboard report them"
_EVERY_NS = 30 * SECOND
_NO_HOSTS = "no host metrics: switch hardware monitoring on"


class _Machine(MomentRule):
    """Looks at the readings of the last window."""

    lacking: ClassVar[str] = _NO_HOSTS

    def evaluate(self, model: RunModel) -> Iterator[Observation]:
        """Look at the machines twice a minute: they change slowly."""
        if model.as_of_ns % _EVERY_NS == 0:
            yield from super().evaluate(model)

    def _lacks(self, model: RunModel) -> str | None:
        has = model.hardware.gpus if self.lacking == NO_GPUS else model.hardware.hosts
        return None if has else self.lacking

    def since(self, model: RunModel) -> int:
        """Return the start of the window."""
        return model.as_of_ns - int(self["window_s"] * SECOND)


class ThrottledGpu(_Machine):
    """A GPU is throttled."""

    name = "throttled_gpu"
    threshold = (
        "For {window_s} s at {busy} utilization its clock is at most {clock} of the median of its peers, and it is "
        "hotter than {hot} °C or at {power} of its power limit."
    )
    needs = "GPU clock, temperature and power"
    remedy = "Check cooling and the power cap, and drain the machine."
    parameters = (
        Parameter("window_s", 60, "Window, in seconds"),
        Parameter("clock", 0.9, "Clock compared with the median"),
        Parameter("busy", 0.8, "Least utilization"),
        Parameter("hot", 85, "Temperature, in °C"),
        Parameter("power", 0.98, "Share of the power limit"),
    )
    rank = 8
    is_local = True
    explains = frozenset({"straggler", "step_regression", "rollout_bound"})
    lacking = NO_GPUS

    def look(self, model: RunModel) -> list[Signal]:
        """Compare each busy GPU with the others."""
        since = self.since(model)
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
            "It is as busy as its peers and slower.",
            "warning",
            anchor="throttled",
            evidence=[
                fact("clock", clock / 1e6, "MHz", f"median {usual / 1e6:.0f} MHz"),
                fact("temperature", hot, "°C"),
            ],
        )


class OverloadedHost(_Machine):
    """A host is overloaded."""

    name = "overloaded_host"
    threshold = "At least {busy} of all cores are busy in every reading for {window_s} s while its GPUs idle."
    needs = "CPU utilization of hosts"
    remedy = "Run fewer workers on the host, pin them, or move the environment elsewhere."
    parameters = (Parameter("busy", 0.95, "Share of busy cores"), Parameter("window_s", 60, "Window, in seconds"))
    rank = 9
    is_local = True
    explains = frozenset({"straggler", "step_regression"})

    def look(self, model: RunModel) -> Iterator[Signal]:
        """Return the hosts whose cores are busy all the time."""
        since = self.since(model)
        for host, device in model.hardware.hosts.items():
            busy = device.between("cpu_utilization_ratio", since, model.as_of_ns)
            history = device.history("cpu_utilization_ratio")
            if len(busy) < 4 or history[0][0] > since or min(busy) < self["busy"]:
                continue
            gpus = [
                value
                for gpu in model.hardware.gpus.values()
                if gpu.host == host
                for value in gpu.between("utilization_ratio", since, model.as_of_ns)
            ]
            if not gpus or median(gpus) > 0.5:
                continue
            yield Signal(
                {"host": host},
                f"{host} is overloaded: {share_text(median(busy))} of its cores are busy while its GPUs idle",
                "The GPUs wait for the CPU.",
                "warning",
                anchor="overloaded",
                evidence=[fact("busy cores", median(busy)), fact("GPU utilization", median(gpus))],
            )


class DiskFull(_Machine):
    """A disk fills up."""

    name = "disk_full"
    threshold = "At least {limit} of the disk in use; critical from {critical}."
    needs = "disk usage of hosts"
    remedy = "Remove old checkpoints, and move the spill directory."
    parameters = (
        Parameter("limit", 0.95, "Share in use"),
        Parameter("critical", 0.98, "Share that is critical"),
        Parameter("window_s", 60, "Window, in seconds"),
    )
    rank = 9

    def look(self, model: RunModel) -> Iterator[Signal]:
        """Return the disks that are nearly full."""
        for host, device in model.hardware.hosts.items():
            used, total = device.latest("disk_used_bytes"), device.latest("disk_total_bytes")
            if used is None or not total or used / total < self["limit"]:
                continue
            severity: Severity = "critical" if used / total >= self["critical"] else "warning"
            title = f"The disk of {host} is {share_text(used / total)} full"
            evidence = [fact("used", used / 1e9, "GB", f"{total / 1e9:.0f} GB")]
            why = "Checkpoints and spilled objects will fail."
            yield Signal({"host": host}, title, why, severity, anchor="full", evidence=evidence)


class MemoryLeak(_Machine):
    """Host memory leaks."""

    name = "memory_leak"
    threshold = (
        "More than {now} of the memory in use; or a steady rise over {window_s} s that reaches 95% within {hours} h. "
        "Names the process that has grown by {process_share} of what the host has."
    )
    needs = "memory of hosts; names a process where the memory of processes is recorded too"
    remedy = "Find the process whose resident memory grows; restart it between steps until it is fixed."
    parameters = (
        Parameter("now", 0.93, "Share in use"),
        Parameter("window_s", 1200, "Window of the rise, in seconds"),
        Parameter("hours", 6, "Hours until the limit"),
        Parameter("process_share", 0.5, "Share of the growth from which a process is named"),
    )
    rank = 9

    def look(self, model: RunModel) -> Iterator[Signal]:
        """Return the hosts whose memory runs out."""
        for host, device in model.hardware.hosts.items():
            total = device.latest("cgroup_memory_limit_bytes") or device.latest("memory_total_bytes")
            name = "cgroup_memory_used_bytes" if device.latest("cgroup_memory_limit_bytes") else "memory_used_bytes"
            history = [point for point in device.history(name) if point[0] >= self.since(model)]
            if not total or len(history) < 2:
                continue
            used = history[-1][1]
            remaining_s = self._remaining_s(history, total)
            if used / total < self["now"] and (remaining_s is None or remaining_s > self["hours"] * 3600):
                continue
            grows = "" if remaining_s is None else f" and reaches its limit in {seconds_text(max(0.0, remaining_s))}"
            signal = Signal(
                {"host": host},
                f"The memory of {host} is {share_text(used / total)} full{grows}",
                "Ray kills workers at 95%.",
                "warning",
                key=(f"host={host}",),
                anchor="memory",
                evidence=[fact("used", used / 2**30, "GiB", f"{total / 2**30:.0f} GiB")],
            )
            self._add_process(model, host, history[-1][1] - history[0][1], signal)
            yield signal

    def _add_process(self, model: RunModel, host: str, grown: float, signal: Signal) -> None:
        """Name the process that grew most, where its growth is at least half of the host's."""
        by_process = {}
        for number, device in model.hardware.processes.items():
            readings = device.between("resident_memory_bytes", self.since(model), model.as_of_ns)
            if model.processes[number].host == host and len(readings) > 1:
                by_process[number] = readings[-1] - readings[0]
        worst = max(by_process, key=by_process.__getitem__, default=None)
        if worst is None or by_process[worst] <= 0 or by_process[worst] < self["process_share"] * grown:
            return
        process = model.processes[worst]
        signal.culprit = culprit_of(process)
        signal.title += f"; {process.title} grew by {by_process[worst] / 2**30:.1f} GiB"
        signal.lanes = model.lanes_of(worst)
        signal.evidence.append(
            fact(f"growth of {process.title}", by_process[worst] / 2**30, "GiB", f"{grown / 2**30:.1f} GiB of the host")
        )

    def _remaining_s(self, history: list[tuple[int, float]], total: float) -> float | None:
        """Return when the memory is 95% full by its slope; None where it does not rise steadily."""
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

    name = "gpu_memory_creep"
    threshold = (
        "At least {limit} of the memory in use in every reading for {window_s} s, more than {rise} above what it was."
    )
    needs = "GPU memory"
    remedy = (
        "Empty the cache between phases, lower the engine's share, and switch expandable segments off with sleep mode."
    )
    parameters = (
        Parameter("limit", 0.97, "Share in use"),
        Parameter("rise", 0.1, "Rise since the first readings, as a share of the memory"),
        Parameter("window_s", 60, "Window, in seconds"),
    )
    rank = 9
    lacking = NO_GPUS

    def look(self, model: RunModel) -> Iterator[Signal]:
        """Return the GPUs whose memory is nearly full and was not before."""
        since = self.since(model)
        for gpu in model.hardware.gpus.values():
            total = gpu.latest("memory_total_bytes")
            used = gpu.between("memory_used_bytes", since, model.as_of_ns)
            history = gpu.history("memory_used_bytes")
            if not total or len(used) < 4 or len(history) < 20 or min(used) < self["limit"] * total:
                continue
            before = median([value for _, value in history[:10]])
            if median(used) - before < self["rise"] * total:
                continue
            yield Signal(
                {"host": gpu.host, "gpu": gpu.gpu},
                f"The memory of GPU {gpu.gpu} on {gpu.host} is {share_text(median(used) / total)} full",
                f"It was {share_text(before / total)} at first.",
                "warning",
                anchor="memory",
                evidence=[fact("used", median(used) / 2**30, "GiB", f"{total / 2**30:.0f} GiB")],
            )


class GpuFault(_Machine):
    """A GPU reports a fault."""

    name = "gpu_fault"
    threshold = "An error code that is not 0."
    needs = "DCGM or NPU metrics as a scrape target"
    remedy = "Drain the machine and look the code up."
    parameters = (Parameter("window_s", 60, "Window, in seconds"),)
    rank = 1
    explains = frozenset({"straggler", "dead_engine", "stalled_run", "collective_hang", "step_regression"})

    def _lacks(self, model: RunModel) -> str | None:
        return None if model.metrics.track("gpu_errors") else "no DCGM metrics: register the exporter as a target"

    def look(self, model: RunModel) -> list[Signal]:
        """Return the GPUs with errors."""
        track = model.metrics.track("gpu_errors")
        recent = [] if track is None else [p for p in track.points[-20:] if p.time_ns > self.since(model) and p.count]
        bad = [point for point in recent if point.maximum > 0]
        if track is None or not bad:
            return []
        return [Signal({"metric": track.name}, f"{track.name} reports error {number_text(bad[-1].maximum)}",
                       "The driver reported a hardware fault.", "critical", metrics=[track.name], anchor="fault",
                       evidence=[fact(track.name, bad[-1].maximum)])]  # fmt: skip


MACHINE_RULES = (GpuFault, ThrottledGpu, OverloadedHost, DiskFull, MemoryLeak, GpuMemoryCreep)
