"""Comparisons of a process with its peers, and of a host whose processes are all slow with the other hosts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import median, medians, medians_without
from rl_insight.diagnosis.role_steps import RoleStep
from rl_insight.diagnosis.rows import ProcessRow
from rl_insight.diagnosis.rule import Rule
from rl_insight.diagnosis.signals import Signal, fact, saving
from rl_insight.words import ratio_text, seconds_text

OWN_WORK = frozenset({"generate", "update", "log_prob", "reward", "tool", "data", "work", "sync"})
"""Kinds of states whose duration reflects the machine; in a wait, other processes are the slow ones."""
_HISTORY = 30
_LEAST_HISTORY = 10
_EQUAL = 1.15
"""Hosts whose times differ by less than this factor are equally fast."""
_MOST = 0.75
"""Share of a host's processes that must be slow."""


@dataclass(slots=True)
class Slow:
    """A process or lane that took longer than its peers."""

    unit: int
    name: str
    seconds: float
    usual_s: float

    @property
    def ratio(self) -> float:
        """Its time relative to its peers."""
        return self.seconds / max(self.usual_s, 1e-9)

    @property
    def excess_s(self) -> float:
        """How much longer than its peers it took."""
        return self.seconds - self.usual_s


def saved_by(model: RunModel, process: ProcessRow, excess_s: float) -> float:
    """Return how much shorter steps would be without the excess of a process: at most the time others wait for it."""
    if process.role == model.lead:
        return excess_s
    waits = [step.seconds_of("wait", "generate") for step in model.steps.closed[-5:]]
    return min(excess_s, median(waits)) if waits else excess_s


def what_if(step_s: float, saved_s: float) -> str:
    """Return how short steps could be without a delay, for the end of a title; empty if it hardly matters."""
    if saved_s < 0.02 * step_s:
        return ""
    return f"; steps could take as little as {seconds_text(step_s - saved_s)} instead of {seconds_text(step_s)}"


def host_signal(model: RunModel, slow: list[Slow], host: str, step_s: float) -> Signal:
    """Return the finding about a host whose processes are slow, slowest first."""
    worst = slow[0]
    process = model.processes[worst.unit]
    saved_s = saved_by(model, process, worst.excess_s)
    return Signal(
        {"host": host, "role": process.role, "phase": worst.name},
        f"{host} is slow: {len(slow)} of its {process.role} processes take up to {ratio_text(worst.ratio)} as long "
        f"as their peers in {worst.name}{what_if(step_s, saved_s)}",
        "Processes of the same role on other hosts are not slow, so it is the machine.",
        key=("host", host),
        impact=saving(saved_s, step_s),
        lanes=[lane for one in slow for lane in model.lanes_of(one.unit)[:1]],
        evidence=[fact(worst.name, worst.seconds, "s", f"median of the other hosts {seconds_text(worst.usual_s)}")],
    )


class SlowHosts:
    """Hosts that are slower than the others of a role, even if their processes are too many to be outliers."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._before: dict[tuple[str, str], dict[int, deque[float]]] = {}
        """By role and state, then host number: its time relative to the other hosts while it was healthy."""

    def look(self, model: RunModel, role_step: RoleStep, step_s: float) -> list[Signal]:
        """Compare the hosts of a role in one step."""
        found: dict[str, list[Slow]] = {}
        for name, seconds in role_step.seconds.items():
            if state_kind(name) not in OWN_WORK:
                continue
            for host, slow in self._slow(model, role_step.role, name, seconds, step_s).items():
                if host not in found or slow[0].excess_s > found[host][0].excess_s:
                    found[host] = slow
        return [host_signal(model, found[host], host, step_s) for host in sorted(found)]

    def _slow(
        self, model: RunModel, role: str, name: str, seconds: Mapping[int, float], step_s: float
    ) -> dict[str, list[Slow]]:
        units, values = np.fromiter(seconds, np.int64), np.fromiter(seconds.values(), np.float64)
        of_unit = model.hosts_of(units)
        hosts, counts = np.unique(of_unit, return_counts=True)
        if hosts.size < 2 or counts.min() < 2:
            return {}  # processes are compared with each other
        usual = medians(of_unit, values)[1]
        others = medians_without(usual)
        is_candidate = usual - others >= self._rule["share"] * step_s
        history = self._before.setdefault((role, name), {})
        found: dict[str, list[Slow]] = {}
        ratios = (usual / np.maximum(others, 1e-9)).tolist()
        for place, (number, ratio) in enumerate(zip(hosts.tolist(), ratios, strict=True)):
            before = history.get(number)
            if before is None:
                before = history[number] = deque(maxlen=_HISTORY)
            if is_candidate[place]:
                was_equal = len(before) >= _LEAST_HISTORY and median(before) < _EQUAL
                needed = self._rule["pair_ratio"] if hosts.size == 2 and not was_equal else self._rule["ratio"]
                others_s, places = float(others[place]), np.flatnonzero(of_unit == number)
                slow = places[values[places] >= needed * others_s]
                if slow.size >= _MOST * places.size:
                    paired = zip(units[slow].tolist(), values[slow].tolist(), strict=True)
                    each = [Slow(unit, name, value, others_s) for unit, value in paired]
                    found[model.processes[each[0].unit].host] = sorted(each, key=lambda one: -one.seconds)
                    continue
            before.append(ratio)
        return found if 2 * len(found) <= hosts.size else {}
