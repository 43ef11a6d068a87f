"""Who is slower than the others, again and again; and work that is spread unevenly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import compress
from math import log, sqrt
from statistics import fmean

import numpy as np

from rl_insight.diagnosis.activity import Call, calls_in
from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import Interval, mad, median
from rl_insight.diagnosis.role_steps import RoleStep
from rl_insight.diagnosis.rows import SECOND, ProcessRow
from rl_insight.diagnosis.rule import (
    NO_STEPS,
    PERSISTENT,
    Observation,
    Parameter,
    Signal,
    culprit_of,
    fact,
    where,
)
from rl_insight.diagnosis.rules.peers import (
    OWN_WORK,
    RoleRule,
    Slow,
    SlowHosts,
    host_signal,
    saved_by,
    step_seconds,
    what_if,
)
from rl_insight.diagnosis.steps import Step
from rl_insight.diagnosis.words import ratio_text, seconds_text

_SCALE = 1.4826
"""Turns a median absolute deviation into a standard deviation."""
_WINDOW_STEPS = 10
_MIN_CALLS = 8
_LASTING_STEPS = 4
_MANY_CALLS = 64


class Straggler(RoleRule):
    """One rank is slower than its peers in step after step."""

    name = "straggler"
    threshold = (
        "The same process takes {ratio} times the median of its role in a state or phase (or {clear_ratio} times, "
        "when that is {deviations} standard deviations of its peers) and at least {share} of the step longer, in 4 of "
        "5 steps."
    )
    needs = "states or phases of at least two processes of a role"
    remedy = "Look at the GPU clock, temperature and CPU of its host; move the process or replace the machine."
    parameters = (
        Parameter("ratio", 1.33, "Time compared with the median of the peers"),
        Parameter("clear_ratio", 1.1, "Enough when it stands out clearly from the spread of the peers"),
        Parameter("deviations", 5, "Standard deviations that stand out clearly"),
        Parameter("share", 0.04, "Excess as a share of the step"),
        Parameter("pair_ratio", 2.0, "Time compared with the only other process of a role"),
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
        self._by_state: dict[int, int] = {}
        """Process to how many settled steps ago a state of it was slow, counted down."""
        self._hosts = SlowHosts(self)

    def _lacks(self, model: RunModel) -> str | None:
        if not model.steps.total and model.steps.current is None:
            return NO_STEPS
        if model.largest_role() > 1 or any(role.by_lane for role in model.roles.settled):
            return None
        return "no role with several processes"

    def evaluate(self, model: RunModel) -> Iterator[Observation]:
        """Compare the processes of each role in each step that is over, and in their phases."""
        yield from super().evaluate(model)
        step_s = step_seconds(model)
        for step in model.new_steps[-5:]:
            if not step.is_warm_up and step_s is not None:
                yield from self._phases(model, step, step_s)

    def look(self, model: RunModel, role_step: RoleStep, step_s: float) -> list[Signal]:
        """Compare the processes of a role, and its hosts."""
        signals = self._signals(model, role_step, self._slow_units(role_step, step_s), step_s)
        if role_step.by_lane:
            return signals
        told = {signal.culprit["host"] for signal in signals}
        return signals + [one for one in self._hosts.look(model, role_step, step_s) if one.culprit["host"] not in told]

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
        # Many slow ones are not stragglers: the role has two kinds of work.
        if 4 * np.count_nonzero(is_slow) > max(values.size, 4) and values.size != 2:
            return []
        return [Slow(unit, name, seconds[unit], usual_s) for unit in compress(seconds, is_slow.tolist())]

    def _signals(self, model: RunModel, role_step: RoleStep, slow: list[Slow], step_s: float) -> list[Signal]:
        if role_step.by_lane:
            return [self._lane_signal(model, one, step_s) for one in slow[:2]]
        for process in list(self._by_state):
            self._by_state[process] -= 1
            if self._by_state[process] <= 0:
                del self._by_state[process]
        for one in slow:
            self._by_state[one.unit] = 12
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
        recent = [
            one.seconds[slow.name][slow.unit]
            for one in model.roles.recent.get(role_step.role, [])[-5:]
            if slow.unit in one.seconds.get(slow.name, {})
        ]
        usual = [
            median(one.seconds[slow.name].values())
            for one in model.roles.recent.get(role_step.role, [])[-5:]
            if slow.unit in one.seconds.get(slow.name, {})
        ]
        now_s, usual_s = median(recent), median(usual)
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
            f"{slow.name} took {seconds_text(slow.seconds)} there, and {seconds_text(slow.usual_s)} on a usual lane.",
            key=(process.process_id, str(lane)),
            seconds_per_step=saved_s,
            share_of_step=saved_s / step_s,
            lanes=[slow.unit],
            evidence=[fact(slow.name, slow.seconds, "s", f"median of the lanes {seconds_text(slow.usual_s)}")],
        )

    def _phases(self, model: RunModel, step: Step, step_s: float) -> Iterator[Observation]:
        """Compare the phases of sessions by process, over the last steps."""
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
            if value < needed * middle or not stands_out or process in self._by_state:
                continue
            calls = by_process[process]
            # Of a process with many calls only the last are kept: they may cover less than the window.
            since = window[0] if len(calls) < _MANY_CALLS else calls[0].end_ns
            steps = max(1.0, (window[1] - since) / SECOND / step_s)
            lanes = max(1, len({call.session_id for call in calls}) // round(steps))
            excess_s = sum(call.seconds for call in calls) * (1 - middle / value) / steps / lanes
            if excess_s >= self["share"] * step_s:
                owner = model.processes[process]
                mean_s = median([call.seconds for call in calls])
                # A pool of workers: what the slow one does not do in time, the others do.
                rate = sum(1 / pace for pace in usual.values())
                saved_s = saved_by(model, owner, step_s) * (1 - rate / (rate - 1 / value + 1 / middle))
                found.append(_signal(model, owner, name, mean_s, mean_s * middle / value, saved_s, step_s))
        return found if 4 * len(found) <= max(len(usual), 4) else []


def _is_lasting(model: RunModel, role_step: RoleStep, slow: Slow) -> bool:
    """Return whether a unit was slow over the last steps by more than chance, where every unit varies.

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
        return True  # the confirmation of the finding takes more steps than there are so far
    return fmean(logs) >= 4 * median(spreads) / sqrt(len(logs))


def _pace(calls: list[Call]) -> float:
    """Return how long calls take: per token where the tokens are known."""
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
        f"{name} takes {seconds_text(now_s)} there, and {seconds_text(usual_s)} on the median process of its role; "
        "the same process was slow in at least 4 of 5 steps, so it is the machine and not the data.",
        key=(process.process_id,),
        seconds_per_step=saved_s,
        share_of_step=saved_s / step_s,
        lanes=model.lanes_of(process.number),
        evidence=[fact(name, now_s, "s", f"median of the role {seconds_text(usual_s)}"), fact("step", step_s, "s")],
    )
