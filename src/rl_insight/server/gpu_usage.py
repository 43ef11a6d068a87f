"""What the GPUs did in each state, as counters on /metrics: "GPU busy 31 % during rollout" over any time.

The join of samples and states is computed every now and then from the stored runs, never while somebody scrapes. Time
is counted for good once it lies far enough back for everything about it to have arrived; what is younger is computed
anew each time and added on top.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from rl_insight.collector.series import Run
from rl_insight.collector.sinks.prometheus import HealthFamily
from rl_insight.schema import Batch
from rl_insight.schema.names import OVERFLOW_LABEL, MetricKind
from rl_insight.store.errors import StoreError
from rl_insight.store.queries.hardware import GpuTotals, StateTotals, gpu_totals, has_gpus
from rl_insight.store.runs import RunDirectory

_SECOND = 1_000_000_000
_SETTLED_NS = 60 * _SECOND
"""Older than this, everything is taken to have arrived."""
_LOOK_BACK_NS = 600 * _SECOND
"""How far a run is counted back when it is seen for the first time."""
_FORGET_NS = 3600 * _SECOND
_INTERVAL_S = 10.0
_RESTS = 100
"""A computation is followed by a pause of this many times its length: it takes at most 1 % of a core."""
_MAX_STATES = 200
_MAX_STEPS = 256

_FAMILIES: dict[str, tuple[MetricKind, str]] = {
    "state_gpu_busy_seconds": ("counter", "GPU time in a state, weighted by the utilisation; over all GPUs."),
    "state_gpu_memory_byte_seconds": ("counter", "Memory in use times GPU time in a state; over all GPUs."),
    "state_gpu_energy_joules": ("counter", "Energy that all GPUs used in a state."),
    "state_gpu_seconds": ("counter", "GPU time in a state for which a quantity is known; over all GPUs."),
    "step_gpu_energy_joules": ("counter", "Energy that all GPUs used in states of training steps."),
    "last_step_gpu_energy_joules": ("gauge", "Energy that all GPUs used in the training step that ended last."),
}

GPU_USAGE_NAMES = frozenset(f"{name}_total" if kind == "counter" else name for name, (kind, _) in _FAMILIES.items())
"""Exposed names, without the namespace."""

_StateKey = tuple[str, str]
_Values = list[tuple[dict[str, str], float]]


class GpuUsage:
    """Counts what the GPUs of the runs that are being written do in each state.

    Args:
        runs: where the runs are.
        clock: the wall clock in nanoseconds.
    """

    def __init__(self, runs: RunDirectory, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._directory = runs
        self._clock = clock
        self._next_refresh = time.monotonic()
        self._runs: dict[str, _RunUsage] = {}
        self._families: list[HealthFamily] = []

    def note(self, run_id: str, batches: Iterable[Batch]) -> None:
        """Take note that something of a run was stored."""
        now_ns = self._clock()
        for batch in batches:
            known = self._runs.get(run_id)
            if known is None:
                process = batch.process
                run = Run(process.project, process.experiment_name, run_id)
                known = self._runs[run_id] = _RunUsage(run, now_ns - _LOOK_BACK_NS)
            known.written_ns = now_ns

    def families(self) -> list[HealthFamily]:
        """Return what was computed last."""
        return self._families

    def refresh_when_due(self) -> None:
        """Compute anew, unless that was done only just now."""
        started = time.monotonic()
        if not self._runs or started < self._next_refresh:
            return
        self.refresh()
        now = time.monotonic()
        self._next_refresh = now + max(_INTERVAL_S, _RESTS * (now - started))

    def refresh(self) -> None:
        """Compute what `families` returns."""
        now_ns = self._clock()
        for run_id, usage in list(self._runs.items()):
            if usage.written_ns < now_ns - _FORGET_NS:
                del self._runs[run_id]
            elif usage.counted_ns <= usage.written_ns + _SETTLED_NS:  # else all of it is settled
                try:
                    self._count(run_id, usage, now_ns)
                except StoreError:  # deleted, or given up by retention
                    del self._runs[run_id]
        self._families = _families(list(self._runs.values()))

    def _count(self, run_id: str, usage: _RunUsage, now_ns: int) -> None:
        with self._directory.open(run_id) as store, store.reader() as cursor:
            if not has_gpus(cursor):
                return
            until_ns = now_ns - _SETTLED_NS
            if until_ns > usage.settled_ns:
                usage.settle(gpu_totals(cursor, start_ns=usage.settled_ns, end_ns=until_ns), until_ns)
            usage.show(gpu_totals(cursor, start_ns=usage.settled_ns, end_ns=now_ns))
        usage.counted_ns = now_ns


class _RunUsage:
    """The totals of one run."""

    def __init__(self, run: Run, since_ns: int) -> None:
        self.run = run
        self.written_ns = self.counted_ns = 0
        self.settled_ns = since_ns
        """Up to here everything is counted for good."""
        self._settled: dict[_StateKey, _Amounts] = {}
        self._settled_steps: dict[int, float] = {}
        self._settled_energy = 0.0
        self.states: dict[_StateKey, _Amounts] = {}
        self.step_energy = 0.0
        self.last_step_energy: float | None = None

    def settle(self, totals: GpuTotals, until_ns: int) -> None:
        """Count a stretch of time for good."""
        self.settled_ns = until_ns
        for key, state in self._keyed(totals):
            self._settled.setdefault(key, _Amounts()).add(state)
        for step in totals.steps:
            self._settled_energy += step.energy_joules
            self._settled_steps[step.step] = self._settled_steps.get(step.step, 0.0) + step.energy_joules
        for old in sorted(self._settled_steps)[:-_MAX_STEPS]:
            del self._settled_steps[old]

    def show(self, recent: GpuTotals) -> None:
        """Show what is settled together with what came since; a total never falls, whatever arrives late."""
        states = {key: amounts.copy() for key, amounts in self._settled.items()}
        for key, state in self._keyed(recent):
            states.setdefault(key, _Amounts()).add(state)
        for key, amounts in states.items():
            amounts.raise_to(self.states.get(key))
        self.states = states
        self.step_energy = max(self.step_energy, self._settled_energy + sum(s.energy_joules for s in recent.steps))
        running = min((step.step for step in recent.steps), default=None)
        ended = [step for step in self._settled_steps if running is None or step < running]
        self.last_step_energy = self._settled_steps[max(ended)] if ended else None

    def _keyed(self, totals: GpuTotals) -> Iterator[tuple[_StateKey, StateTotals]]:
        for state in totals.states:
            key = (state.role, state.name)
            is_new = key not in self._settled and key not in self.states
            if is_new and len(self._settled | self.states) >= _MAX_STATES:
                key = (OVERFLOW_LABEL, OVERFLOW_LABEL)
            yield key, state

    def labels(self, **labels: str) -> dict[str, str]:
        """Return the labels of a series of this run, those that are empty left out."""
        return {name: value for name, value in {**self.run._asdict(), **labels}.items() if value}


class _Amounts:
    """What is counted of one state."""

    __slots__ = ("busy_s", "byte_seconds", "joules", "memory_s", "power_s", "utilization_s")

    def __init__(self) -> None:
        self.busy_s = self.utilization_s = self.byte_seconds = self.memory_s = self.joules = self.power_s = 0.0

    def add(self, state: StateTotals) -> None:
        self.busy_s += state.busy_gpu_seconds
        self.utilization_s += state.utilization_gpu_seconds
        self.byte_seconds += state.memory_byte_seconds
        self.memory_s += state.memory_gpu_seconds
        self.joules += state.energy_joules
        self.power_s += state.power_gpu_seconds

    def copy(self) -> _Amounts:
        copied = _Amounts()
        copied.raise_to(self)
        return copied

    def raise_to(self, other: _Amounts | None) -> None:
        for name in self.__slots__ if other is not None else ():
            setattr(self, name, max(getattr(self, name), getattr(other, name)))


def _families(runs: list[_RunUsage]) -> list[HealthFamily]:
    values: dict[str, _Values] = {name: [] for name in _FAMILIES}
    for run in runs:
        for (role, state), amounts in run.states.items():
            _add_state(values, run.labels(role=role, state=state), amounts)
        if run.step_energy:
            values["step_gpu_energy_joules"].append((run.labels(), run.step_energy))
        if run.last_step_energy is not None:
            values["last_step_gpu_energy_joules"].append((run.labels(), run.last_step_energy))
    return [HealthFamily(name, *_FAMILIES[name], found) for name, found in values.items() if found]


def _add_state(values: dict[str, _Values], labels: dict[str, str], amounts: _Amounts) -> None:
    """Add the series of one state; what is unknown is left out, never 0."""
    for name, amount, quantity, seconds in (
        ("state_gpu_busy_seconds", amounts.busy_s, "utilization_ratio", amounts.utilization_s),
        ("state_gpu_memory_byte_seconds", amounts.byte_seconds, "memory_used_bytes", amounts.memory_s),
        ("state_gpu_energy_joules", amounts.joules, "power_watts", amounts.power_s),
    ):
        if seconds > 0:
            values[name].append((labels, amount))
            values["state_gpu_seconds"].append(({**labels, "quantity": quantity}, seconds))
