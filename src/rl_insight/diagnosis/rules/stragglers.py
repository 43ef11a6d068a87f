"""Processes and hosts that are consistently slower than their peers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import compress
from math import log, sqrt
from statistics import fmean

import numpy as np

from rl_insight.diagnosis.activity import Call, calls_in
from rl_insight.diagnosis.hardware import Device
from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import Interval, mad, median
from rl_insight.diagnosis.role_steps import RoleStep
from rl_insight.diagnosis.rows import SECOND, ProcessRow
from rl_insight.diagnosis.rule import NUMBERED_STEPS, PERSISTENT, Parameter, RoleRule
from rl_insight.diagnosis.rules.peers import OWN_WORK, Slow, SlowHosts, host_signal, saved_by, what_if
from rl_insight.diagnosis.signals import Observation, Signal, culprit_of, fact, saving, where
from rl_insight.diagnosis.steps import ObservedStep
from rl_insight.words import ratio_text, seconds_text, size_text

_BYTES = ("network_sent_bytes", "network_received_bytes")
_NETWORK_STEPS = 5
_SCALE = 1.4826
"""Converts a median absolute deviation into a standard deviation."""
_WINDOW_STEPS = 10
_MIN_CALLS = 8
_LASTING_STEPS = 4
_MANY_CALLS = 64


class Straggler(RoleRule):
    """One rank is slower than its peers in step after step."""

    threshold = (
        "The same process takes {ratio} times the median of its role in a state or phase (or {clear_ratio} times, if "
        "that is {deviations} standard deviations of its peers), which costs at least {share:.0%} of the step, in 4 of "
        "5 steps."
    )
    needs = "states or phases of at least two processes of a role"
    remedy = "Check the GPU clock, temperature and CPU of its host; move the process or replace the machine."
    parameters = (
        Parameter("ratio", 1.33, "Time relative to the median of the peers"),
        Parameter("clear_ratio", 1.1, "Enough for a process that clearly stands out from the spread of its peers"),
        Parameter("deviations", 5, "Standard deviations that clearly stand out"),
        Parameter("share", 0.04, "Excess as a share of the step"),
        Parameter("pair_ratio", 2.0, "Time relative to the only other process of a role"),
    )
    confirmation = PERSISTENT
    rank = 45
    explains = frozenset({
        "step_regression", "rollout_bound", "trainer_bound", "long_tail", "data_imbalance", "sync_overhead",
        "slow_reward", "slow_weight_sync",
    })  # fmt: skip

    by_lane = True
    family = "states "

    def _begin(self) -> None:
        self._looks = 0
        self._by_state: dict[int, int] = {}
        """Processes with a slow state, and the evaluation until which that counts."""
        self._hosts = SlowHosts(self)

    def missing(self, model: RunModel) -> str | None:
        """Return that there are no steps, or no peers."""
        if not NUMBERED_STEPS.is_in(model):
            return NUMBERED_STEPS.advice
        if model.largest_role() > 1 or any(role.by_lane for role in model.roles.settled):
            return None
        return "no role with several processes"

    def evaluate(self, model: RunModel) -> Iterator[Observation]:
        """Compare the processes of each role in each finished step, and in their phases."""
        yield from super().evaluate(model)
        step_s = model.steps.usual_seconds()
        for step in model.new_steps[-5:]:
            if not step.is_warm_up and step_s is not None:
                yield from self._phases(model, step, step_s)

    def _look(self, model: RunModel, role_step: RoleStep, step_s: float) -> list[Signal]:
        signals = self._signals(model, role_step, self._slow_units(role_step, step_s), step_s)
        if role_step.by_lane:
            return signals
        named = {signal.culprit["host"] for signal in signals}
        return signals + [one for one in self._hosts.look(model, role_step, step_s) if one.culprit["host"] not in named]

    def _slow_units(self, role_step: RoleStep, step_s: float) -> list[Slow]:
        found: dict[int, Slow] = {}
        for name, seconds in role_step.seconds.items():
            if state_kind(name) not in OWN_WORK or len(seconds) < 2:
                continue
            for slow in self._outliers(name, seconds, step_s):
                if slow.unit not in found or slow.excess_s > found[slow.unit].excess_s:
                    found[slow.unit] = slow
        return sorted(found.values(), key=lambda slow: slow.usual_s - slow.seconds)

    def _outliers(self, name: str, seconds: dict[int, float], step_s: float) -> list[Slow]:
        values = np.fromiter(seconds.values(), np.float64)
        usual_s = float(np.median(values))
        if values.size == 2:
            usual_s, needed = float(values.min()), self["pair_ratio"]
            clear_s = float("inf")
        else:
            needed = self["ratio"]
            spread_s = max(_SCALE * float(np.median(np.abs(values - usual_s))), 0.005 * usual_s)
            clear_s = max(usual_s * self["clear_ratio"], usual_s + self["deviations"] * spread_s)
        is_slow = (values >= min(needed * usual_s, clear_s)) & (values - usual_s >= self["share"] * step_s)
        # If many are slow, there is no straggler: the role has two kinds of work.
        if 4 * np.count_nonzero(is_slow) > max(values.size, 4) and values.size != 2:
            return []
        return [Slow(unit, name, seconds[unit], usual_s) for unit in compress(seconds, is_slow.tolist())]

    def _signals(self, model: RunModel, role_step: RoleStep, slow: list[Slow], step_s: float) -> list[Signal]:
        if role_step.by_lane:
            return [self._lane_signal(model, one, step_s) for one in slow[:2]]
        self._looks += 1
        self._by_state |= {one.unit: self._looks + 12 for one in slow}
        if not slow:
            return []
        peers = Counter(process.host for process in model.workers() if process.role == role_step.role)
        by_host: dict[str, list[Slow]] = {}
        for one in slow:
            by_host.setdefault(model.processes[one.unit].host, []).append(one)
        whole = {host for host, found in by_host.items() if len(found) > 1 and 4 * len(found) >= 3 * peers[host]}
        if len(whole) >= len(peers):
            whole = set()
        signals = [host_signal(model, by_host[host], host, step_s) for host in sorted(whole)]
        alone = [
            one for one in slow if model.processes[one.unit].host not in whole and _is_lasting(model, role_step, one)
        ]
        return signals + [self._process_signal(model, one, role_step, step_s) for one in alone[:3]]

    def _process_signal(self, model: RunModel, slow: Slow, role_step: RoleStep, step_s: float) -> Signal:
        process = model.processes[slow.unit]
        recent = [one.seconds.get(slow.name, {}) for one in model.roles.recent.get(role_step.role, [])[-5:]]
        recent = [seconds for seconds in recent if slow.unit in seconds]
        now_s = median([seconds[slow.unit] for seconds in recent])
        usual_s = median([median(seconds.values()) for seconds in recent])
        saved_s = saved_by(model, process, max(0.0, now_s - usual_s))
        return _signal(model, process, slow.name, now_s, usual_s, saved_s, step_s)

    @staticmethod
    def _lane_signal(model: RunModel, slow: Slow, step_s: float) -> Signal:
        process, lane = model.process_of_lane(slow.unit), model.lanes[slow.unit][1]
        saved_s = slow.seconds - slow.usual_s
        return Signal(
            culprit_of(process, lane=lane, phase=slow.name),
            f"{lane or where(process)} takes {ratio_text(slow.ratio)} as long as its peers in {slow.name}"
            f"{what_if(step_s, saved_s)}",
            f"{slow.name} took {seconds_text(slow.seconds)} there and {seconds_text(slow.usual_s)} on the median lane.",
            key=(process.process_id, str(lane)),
            impact=saving(saved_s, step_s),
            lanes=[slow.unit],
            evidence=[fact(slow.name, slow.seconds, "s", f"median of the lanes {seconds_text(slow.usual_s)}")],
        )

    def _phases(self, model: RunModel, step: ObservedStep, step_s: float) -> Iterator[Observation]:
        """Compare the session phases of processes over the last steps."""
        window = model.steps.closed[-_WINDOW_STEPS:]
        since = window[0].start_ns
        roles: dict[str, list[Signal]] = {}
        for name, kept in model.call_book.generations.items():
            by_role: dict[str, dict[int, list[Call]]] = {}
            for process, calls in kept.items():
                recent = calls_in(calls, since, step.end_ns)
                if recent:
                    by_role.setdefault(model.processes[process].role, {})[process] = recent
            for role, by_process in by_role.items():
                signals = roles.setdefault(role, [])
                signals += self._slow_callers(model, name, by_process, (since, step.end_ns), step_s)
        for role, signals in roles.items():
            yield Observation(step.end_ns, step.number, signals, step.start_ns, f"phases {role}")

    def _slow_callers(
        self, model: RunModel, name: str, by_process: dict[int, list[Call]], window: Interval, step_s: float
    ) -> list[Signal]:
        usual = {process: _pace(calls) for process, calls in by_process.items() if len(calls) >= _MIN_CALLS}
        if len(usual) < 2:
            return []
        middle = median(usual.values())
        needed = self["ratio"]
        deviations = 0.0
        if len(usual) == 2:
            middle, needed = min(usual.values()), self["pair_ratio"]
        else:
            logs = [log(value) for value in usual.values()]
            deviations = max(_SCALE * mad(logs), 0.02)
        found = []
        for process, value in usual.items():
            stands_out = len(usual) == 2 or log(value / middle) >= self["deviations"] * deviations
            if value < needed * middle or not stands_out or self._by_state.get(process, 0) > self._looks:
                continue
            calls = by_process[process]
            # Only the last calls of a process are kept: if there are many, they may not cover the window.
            since = window[0] if len(calls) < _MANY_CALLS else calls[0].end_ns
            steps = max(1.0, (window[1] - since) / SECOND / step_s)
            lanes = max(1, len({call.session_id for call in calls}) // round(steps))
            excess_s = sum(call.seconds for call in calls) * (1 - middle / value) / steps / lanes
            if excess_s >= self["share"] * step_s:
                owner = model.processes[process]
                mean_s = median([call.seconds for call in calls])
                # In a pool of workers, the others pick up the slow one's share.
                rate = sum(1 / pace for pace in usual.values())
                saved_s = saved_by(model, owner, step_s) * (1 - rate / (rate - 1 / value + 1 / middle))
                found.append(_signal(model, owner, name, mean_s, mean_s * middle / value, saved_s, step_s))
        return found if 4 * len(found) <= max(len(usual), 4) else []


def _is_lasting(model: RunModel, role_step: RoleStep, slow: Slow) -> bool:
    """Return whether a unit was slower over the last steps than chance explains.

    The mean of four steps must exceed that of the peers by four standard errors.
    """
    logs, spreads = [], []
    for one in model.roles.recent.get(role_step.role, [])[-_LASTING_STEPS:]:
        seconds = one.seconds.get(slow.name, {})
        if len(seconds) > 2 and seconds.get(slow.unit, 0.0) > 0 and (usual_s := median(seconds.values())) > 0:
            values = [log(value / usual_s) for value in seconds.values() if value > 0]
            spreads.append(_SCALE * mad(values, 0.0))
            logs.append(log(seconds[slow.unit] / usual_s))
    if len(logs) < _LASTING_STEPS:
        return True  # too early to judge: confirming the finding takes more steps than this
    return fmean(logs) >= 4 * median(spreads) / sqrt(len(logs))


def _pace(calls: list[Call]) -> float:
    """Return how long calls take, per token if the tokens are known."""
    if all(call.tokens for call in calls):
        return max(1e-9, median([call.seconds / (call.tokens or 1.0) for call in calls]))
    return max(1e-9, median([call.seconds for call in calls]))


def _signal(
    model: RunModel, process: ProcessRow, name: str, now_s: float, usual_s: float, saved_s: float, step_s: float
) -> Signal:
    return Signal(
        culprit_of(process, phase=name),
        f"{where(process)} takes {ratio_text(now_s / max(usual_s, 1e-9))} as long as its peers in {name}"
        f"{what_if(step_s, saved_s)}",
        f"{name} takes {seconds_text(now_s)} there and {seconds_text(usual_s)} on the median process of its role; the "
        "same process was slow in at least 4 of 5 steps, so the machine is the likely cause, not the data.",
        key=(process.process_id,),
        impact=saving(saved_s, step_s),
        lanes=model.lanes_of(process.number),
        evidence=[fact(name, now_s, "s", f"median of the role {seconds_text(usual_s)}"), fact("step", step_s, "s")],
    )


class SlowNetwork(RoleRule):
    """The network of a host is slower than that of its peers."""

    threshold = (
        "In the weight-sync or update states of the last 5 steps a host moves at most {share:.0%} of the bytes per "
        "second of the median host of the role, and spends {ratio} times as long in them; in 3 of 5 steps."
    )
    needs = "network counters of at least three hosts of a role, and weight-sync or update states"
    remedy = "Check the host's link: cable, switch port, negotiated speed, and which interface NCCL uses."
    parameters = (
        Parameter("share", 0.5, "Bytes per second relative to the median of the hosts"),
        Parameter("ratio", 1.33, "Time in the state relative to the median of the hosts"),
        Parameter("hosts", 3, "Minimum number of hosts to compare"),
        Parameter("floor_bytes", 1e7, "Minimum bytes per second of the median host"),
    )
    rank = 40
    is_local = True
    explains = frozenset({"straggler", "slow_weight_sync", "step_regression", "rollout_bound", "sync_overhead"})

    def _begin(self) -> None:
        self._steps: dict[tuple[str, str], deque[tuple[int, dict[str, float]]]] = {}
        """By role and state: the start of each of the last steps, and the seconds of each host in it."""

    def missing(self, model: RunModel) -> str | None:
        """Return that too few hosts report network counters."""
        measured = [device for device in model.hardware.hosts.values() if _BYTES[0] in device.quantities]
        if len(measured) >= self["hosts"]:
            return None
        return f"no network counters of at least {self['hosts']:.0f} hosts: turn on hardware monitoring"

    def _look(self, model: RunModel, role_step: RoleStep, step_s: float) -> list[Signal]:
        if self.missing(model):
            return []  # there may be ten thousand processes on hosts without counters
        return [one for name in role_step.seconds for one in self._compare(model, role_step, name, step_s)][:1]

    def _compare(self, model: RunModel, role_step: RoleStep, name: str, step_s: float) -> Iterator[Signal]:
        if state_kind(name) not in {"sync", "update"}:
            return
        hosts: dict[str, list[float]] = {}
        for unit, seconds in role_step.seconds[name].items():
            hosts.setdefault(model.processes[unit].host, []).append(seconds)
        steps = self._steps.setdefault((role_step.role, name), deque(maxlen=_NETWORK_STEPS))
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
            f"The network of {slowest} moves {size_text(rates[slowest])}/s in {name}, its peers' "
            f"{size_text(usual)}/s{what_if(step_s, saved_s)}",
            f"It spends {ratio_text(taken[slowest] / usual_s)} as long in {name} as the median host.",
            key=("host", slowest),
            impact=saving(saved_s, step_s),
            lanes=model.lanes_of(process.number),
            evidence=[
                fact("bytes per second", rates[slowest], "B/s", f"median of the hosts {size_text(usual)}/s"),
                fact(name, taken[slowest] / len(steps), "s", f"median {seconds_text(usual_s / len(steps))}"),
            ],
        )


def _moved(host: Device | None, start_ns: int, end_ns: int) -> float | None:
    """Return how many bytes a host sent and received in a window; None if it has too few readings."""
    total = None
    if host is None:
        return None
    for name in _BYTES:
        points = host.points(name, start_ns, end_ns)
        if len(points) >= 2 and points[-1][0] > points[0][0]:
            (first_ns, first), (last_ns, last) = points[0], points[-1]
            total = (total or 0.0) + (last - first) * (end_ns - start_ns) / (last_ns - first_ns)
    return total
