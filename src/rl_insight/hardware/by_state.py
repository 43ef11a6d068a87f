"""What the accelerators did while the run was in each state: "GPU busy 31 % during rollout".

Between two samples of a GPU each quantity is taken to run in a straight line, so a mean over a state is weighted by
time and the energy is the trapezoid of the power. Where two samples are too far apart nothing is known, and nothing is
counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import nan

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_NANOSECOND = 1e-9


class StateInterval(msgspec.Struct, frozen=True):
    """A lane was in a state."""

    lane: str
    role: str
    host: str
    name: str
    start_ns: int
    end_ns: int
    step: int | None = None
    gpus: tuple[str, ...] | None = None
    """The GPUs that the lane's process uses; None: all of its host."""


class GpuSample(msgspec.Struct, frozen=True):
    """What one GPU showed at one moment; NaN is unknown."""

    host: str
    gpu: str
    time_ns: int
    utilization_ratio: float = nan
    memory_used_bytes: float = nan
    power_watts: float = nan


class StateUsage(msgspec.Struct, frozen=True):
    """What the GPUs did while a role was in a state. None where no sample tells."""

    role: str
    name: str
    seconds: float
    """Wall time in the state on all hosts together; lanes of one host that overlap count once."""
    gpus: int
    """GPUs that a sample tells something about."""
    utilization_ratio: float | None
    memory_used_bytes: float | None
    """Of one GPU, in the mean."""
    energy_joules: float | None
    """Of all GPUs together."""


class StepEnergy(msgspec.Struct, frozen=True):
    """The energy of all GPUs over a step."""

    step: int
    energy_joules: float
    gpu_seconds: float
    """For how long, over all GPUs, the power was known."""


def usage_by_state(
    states: Iterable[StateInterval], samples: Iterable[GpuSample], *, max_gap_s: float = 30.0
) -> list[StateUsage]:
    """Return the use of the GPUs for each role and state, those with the most time first.

    Args:
        states: In any order; they may overlap.
        samples: In any order.
        max_gap_s: Two samples of a GPU that are further apart tell nothing about the time between them.
    """
    groups: dict[tuple[str, str], list[StateInterval]] = {}
    for state in states:
        groups.setdefault((state.role, state.name), []).append(state)
    histories = _histories(samples, max_gap_s)
    usages = [_usage(role, name, group, histories) for (role, name), group in groups.items()]
    return sorted(usages, key=lambda usage: (-usage.seconds, usage.role, usage.name))


def energy_by_step(
    states: Iterable[StateInterval], samples: Iterable[GpuSample], *, max_gap_s: float = 30.0
) -> list[StepEnergy]:
    """Return the energy of each step that states belong to, in the order of the steps; see `usage_by_state`."""
    groups: dict[int, list[StateInterval]] = {}
    for state in states:
        if state.step is not None:
            groups.setdefault(state.step, []).append(state)
    histories = _histories(samples, max_gap_s)
    energies = []
    for step in sorted(groups):
        joules, seconds = _integral(groups[step], histories, "power_watts")
        if seconds > 0:
            energies.append(StepEnergy(step, joules, seconds))
    return energies


class _History:
    """The integral of one quantity of one GPU over time, ready to be asked about many intervals."""

    def __init__(self, times_ns: Sequence[int], values: Sequence[float], max_gap_s: float) -> None:
        self._times = np.asarray(times_ns, dtype=np.int64)
        self._values = np.asarray(values, dtype=np.float64)
        widths = np.diff(self._times) * _NANOSECOND
        self._known = widths <= max_gap_s
        areas = np.where(self._known, (self._values[1:] + self._values[:-1]) / 2 * widths, 0.0)
        self._areas = np.concatenate([[0.0], np.cumsum(areas)])
        self._widths = np.concatenate([[0.0], np.cumsum(np.where(self._known, widths, 0.0))])

    def integral(self, intervals: Sequence[tuple[int, int]]) -> tuple[float, float]:
        """Return the area under the quantity over the intervals, and for how much of their time it is known."""
        if len(self._times) < 2 or not intervals:
            return 0.0, 0.0
        edges = np.asarray(intervals, dtype=np.int64)
        start_areas, start_widths = self._until(edges[:, 0])
        end_areas, end_widths = self._until(edges[:, 1])
        return float(np.sum(end_areas - start_areas)), float(np.sum(end_widths - start_widths))

    def _until(self, moments: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return area and known time from the first sample to each moment."""
        moments = np.clip(moments, self._times[0], self._times[-1])
        place = np.clip(np.searchsorted(self._times, moments, side="right") - 1, 0, len(self._times) - 2)
        into = np.where(self._known[place], (moments - self._times[place]) * _NANOSECOND, 0.0)
        widths = np.maximum((self._times[place + 1] - self._times[place]) * _NANOSECOND, _NANOSECOND)
        first = self._values[place]
        value = first + (self._values[place + 1] - first) * (into / widths)
        return self._areas[place] + (first + value) / 2 * into, self._widths[place] + into


Histories = dict[tuple[str, str], dict[str, _History]]

_QUANTITIES = ("utilization_ratio", "memory_used_bytes", "power_watts")


def _histories(samples: Iterable[GpuSample], max_gap_s: float) -> Histories:
    by_gpu: dict[tuple[str, str], dict[int, GpuSample]] = {}
    for sample in samples:
        by_gpu.setdefault((sample.host, sample.gpu), {})[sample.time_ns] = sample
    histories: Histories = {}
    for gpu, found in by_gpu.items():
        ordered = [found[time] for time in sorted(found)]
        histories[gpu] = {}
        for quantity in _QUANTITIES:
            known = [sample for sample in ordered if np.isfinite(getattr(sample, quantity))]
            values = [getattr(sample, quantity) for sample in known]
            histories[gpu][quantity] = _History([sample.time_ns for sample in known], values, max_gap_s)
    return histories


def _usage(role: str, name: str, states: list[StateInterval], histories: Histories) -> StateUsage:
    hosts: dict[str, list[tuple[int, int]]] = {}
    for state in states:
        hosts.setdefault(state.host, []).append((state.start_ns, state.end_ns))
    seconds = sum(end - start for intervals in hosts.values() for start, end in _union(intervals)) * _NANOSECOND
    busy, busy_seconds = _integral(states, histories, "utilization_ratio")
    memory, memory_seconds = _integral(states, histories, "memory_used_bytes")
    energy, energy_seconds = _integral(states, histories, "power_watts")
    return StateUsage(
        role=role,
        name=name,
        seconds=seconds,
        gpus=_gpu_count(states, histories),
        utilization_ratio=busy / busy_seconds if busy_seconds > 0 else None,
        memory_used_bytes=memory / memory_seconds if memory_seconds > 0 else None,
        energy_joules=energy if energy_seconds > 0 else None,
    )


def _integral(states: Iterable[StateInterval], histories: Histories, quantity: str) -> tuple[float, float]:
    area = seconds = 0.0
    for gpu, intervals in _intervals_by_gpu(states, histories).items():
        gpu_area, gpu_seconds = histories[gpu][quantity].integral(intervals)
        area += gpu_area
        seconds += gpu_seconds
    return area, seconds


def _gpu_count(states: Iterable[StateInterval], histories: Histories) -> int:
    return sum(
        any(history.integral(intervals)[1] > 0 for history in histories[gpu].values())
        for gpu, intervals in _intervals_by_gpu(states, histories).items()
    )


def _intervals_by_gpu(
    states: Iterable[StateInterval], histories: Histories
) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Return when each GPU was in one of the states, without overlap."""
    of_host: dict[str, list[str]] = {}
    for host, gpu in histories:
        of_host.setdefault(host, []).append(gpu)
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for state in states:
        for gpu in of_host.get(state.host, ()):
            if state.gpus is None or gpu in state.gpus:
                found.setdefault((state.host, gpu), []).append((state.start_ns, state.end_ns))
    return {gpu: _union(intervals) for gpu, intervals in found.items()}


def _union(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join intervals that overlap or touch; empty ones vanish."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined
