"""Links and caches that are slower than they should be: the network of a host, and an engine's prefix cache."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from rl_insight.diagnosis.hardware import Device
from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import median
from rl_insight.diagnosis.role_steps import RoleStep
from rl_insight.diagnosis.rule import PERSISTENT, Parameter, Severity, Signal, StepRule, fact
from rl_insight.diagnosis.rules.peers import RoleRule, saved_by, what_if
from rl_insight.diagnosis.steps import Step
from rl_insight.diagnosis.words import ratio_text, seconds_text, share_text

_WINDOW = 5
_BYTES = ("network_sent_bytes", "network_received_bytes")


class SlowNetwork(RoleRule):
    """The network of a host is slower than that of its peers."""

    name = "slow_network"
    threshold = (
        "In the weight-sync or update states of the last 5 steps a host moves at most {share} of the bytes per second "
        "of the median host of the role, and spends {ratio} times as long in them; 3 of 5."
    )
    needs = "network counters of at least three hosts of a role, and weight-sync or update states"
    remedy = "Check the link of the host: cable, switch port, negotiated speed, and which interface NCCL uses."
    parameters = (
        Parameter("share", 0.5, "Bytes per second compared with the median of the hosts"),
        Parameter("ratio", 1.33, "Time in the state compared with the median of the hosts"),
        Parameter("hosts", 3, "Fewest hosts that are compared"),
        Parameter("floor_bytes", 1e7, "Fewest bytes per second of the median host"),
    )
    rank = 40
    is_local = True
    explains = frozenset({"straggler", "slow_weight_sync", "step_regression", "rollout_bound", "sync_overhead"})

    def _begin(self) -> None:
        self._steps: dict[tuple[str, str], deque[tuple[int, dict[str, float]]]] = {}
        """Role and state to the start of the last steps and the seconds of each host in it."""

    def _lacks(self, model: RunModel) -> str | None:
        measured = [device for device in model.hardware.hosts.values() if _BYTES[0] in device.quantities]
        if len(measured) >= self["hosts"]:
            return None
        return f"no network counters of at least {self['hosts']:.0f} hosts: switch hardware monitoring on"

    def look(self, model: RunModel, role_step: RoleStep, step_s: float) -> list[Signal]:
        """Compare the hosts of a role."""
        if self._lacks(model):
            return []  # ten thousand processes on hosts that nothing is known of
        return [one for name in role_step.seconds for one in self._compare(model, role_step, name, step_s)][:1]

    def _compare(self, model: RunModel, role_step: RoleStep, name: str, step_s: float) -> Iterator[Signal]:
        if state_kind(name) not in {"sync", "update"}:
            return
        hosts: dict[str, list[float]] = {}
        for unit, seconds in role_step.seconds[name].items():
            hosts.setdefault(model.processes[unit].host, []).append(seconds)
        steps = self._steps.setdefault((role_step.role, name), deque(maxlen=_WINDOW))
        steps.append((role_step.start_ns, {host: max(seconds) for host, seconds in hosts.items()}))
        taken = {host: sum(seconds.get(host, 0.0) for _, seconds in steps) for host in hosts}
        rates: dict[str, float] = {}
        for host, seconds in taken.items():
            moved = _moved(model.hardware.hosts.get(host), steps[0][0], role_step.end_ns)
            if moved is not None and seconds > 0:
                rates[host] = moved / seconds
        if len(rates) < self["hosts"]:
            return
        usual, usual_s = median(rates.values()), median([taken[host] for host in rates])
        slowest = min(rates, key=rates.__getitem__)
        is_slow = rates[slowest] <= self["share"] * usual and taken[slowest] >= self["ratio"] * usual_s
        if not is_slow or usual < self["floor_bytes"]:
            return
        process = next(one for one in model.workers() if one.host == slowest and one.role == role_step.role)
        saved_s = saved_by(model, process, (taken[slowest] - usual_s) / len(steps))
        yield Signal(
            {"host": slowest, "role": role_step.role, "phase": name},
            f"The network of {slowest} moves {rates[slowest] / 1e6:.0f} MB/s in {name}, its peers "
            f"{usual / 1e6:.0f} MB/s{what_if(step_s, saved_s)}",
            f"It spends {ratio_text(taken[slowest] / usual_s)} as long in {name} as the median host.",
            key=("host", slowest),
            seconds_per_step=saved_s,
            share_of_step=saved_s / step_s,
            lanes=model.lanes_of(process.number),
            evidence=[
                fact("bytes per second", rates[slowest], "B/s", f"median of the hosts {usual / 1e6:.0f} MB/s"),
                fact(name, taken[slowest] / len(steps), "s", f"median {seconds_text(usual_s / len(steps))}"),
            ],
        )


def _moved(host: Device | None, start_ns: int, end_ns: int) -> float | None:
    """Return how many bytes a host sent and received in a window, by its readings; None where they are too few."""
    total = None
    if host is None:
        return None
    for name in _BYTES:
        points = host.points(name, start_ns, end_ns)
        if len(points) >= 2 and points[-1][0] > points[0][0]:
            (first_ns, first), (last_ns, last) = points[0], points[-1]
            total = (total or 0.0) + (last - first) * (end_ns - start_ns) / (last_ns - first_ns)
    return total


class ColdPrefixCache(StepRule):
    """The prefix cache of an engine is useless."""

    name = "cold_prefix_cache"
    threshold = (
        "Over the last 5 steps the hit rate is below half of what it was: a warning. It is below {share} of (n - 1) / "
        "n with n samples per prompt: information. 4 of 5 steps."
    )
    needs = "vLLM's or SGLang's prefix-cache metrics"
    remedy = "Route the samples of a prompt to one replica; salt the cache by the version instead of resetting it."
    parameters = (
        Parameter("share", 0.5, "Hit rate compared with the expected one"),
        Parameter("least", 0.2, "Hit rate before, from which a fall counts"),
    )
    confirmation = PERSISTENT
    rank = 61

    def _begin(self) -> None:
        self._before: dict[str, deque[float]] = {}

    def _lacks(self, model: RunModel) -> str | None:
        known = {name for engine in model.hardware.engines.values() for name in engine.quantities}
        if "hit_rate" in known or {"prefix_hits", "prefix_queries"} <= known:
            return None
        return "no prefix-cache metrics: register the address of vLLM or SGLang with `rl-insight server targets`"

    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Compare the hit rate of each engine with its past, and with what the size of groups allows."""
        start_ns = model.steps.closed[-_WINDOW:][0].start_ns
        rates = {
            instance: rate
            for instance, engine in model.hardware.engines.items()
            if (rate := _hit_rate(engine, start_ns, step.end_ns)) is not None
        }
        if not rates:
            return None
        expected = _expected_rate(model, start_ns, step.end_ns)
        return [signal for instance, rate in rates.items() if (signal := self._judge(instance, rate, expected))]

    def _judge(self, instance: str, rate: float, expected: float | None) -> Signal | None:
        before = self._before.setdefault(instance, deque(maxlen=30))
        usual = median(before) if len(before) >= 10 else None
        if usual is not None and usual >= self["least"] and rate < 0.5 * usual:
            return _cold(instance, rate, f"{share_text(usual)} before", "warning")
        before.append(rate)
        if expected is not None and rate < self["share"] * expected:
            return _cold(instance, rate, f"{share_text(expected)} with this many samples per prompt", "info")
        return None


def _cold(instance: str, rate: float, compared_with: str, severity: Severity) -> Signal:
    return Signal(
        {"engine": instance},
        f"The prefix cache of engine {instance} hits {share_text(rate)} of the prompt tokens, {compared_with}",
        "Prompts are computed again that another sample of their group has computed before.",
        severity,
        evidence=[fact("hit rate", rate, "", compared_with)],
    )


def _hit_rate(engine: Device, start_ns: int, end_ns: int) -> float | None:
    told = engine.between("hit_rate", start_ns, end_ns)
    if told:
        return median(told) / (100 if median(told) > 1.0 else 1)
    hits, queries = (engine.growth(name, start_ns, end_ns) for name in ("prefix_hits", "prefix_queries"))
    return hits / queries if hits is not None and queries else None


def _expected_rate(model: RunModel, start_ns: int, end_ns: int) -> float | None:
    """Return the hit rate that groups of samples allow; None where sessions do not tell their tasks."""
    tasks = Counter(one.task_id for one in model.sessions_between(start_ns, end_ns) if one.task_id)
    samples = median(tasks.values()) if tasks else 0
    return (samples - 1) / samples if samples >= 2 else None
