"""GPUs joined with states: GPU usage while a role was in a state, and the energy of each step.

Values between two samples of a GPU are interpolated linearly, so means over a state are weighted by time and energy is
the integral of the power. If two samples are too far apart, the time between them is not counted.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rl_insight.schema.names import DeviceId, device_of
from rl_insight.schema.records import read_object
from rl_insight.schema.tables import LAST_TIME_NS
from rl_insight.store.queries.base import IS_STATE, Cursor, Parameters, conditions
from rl_insight.store.queries.intervals import by_group, group_order
from rl_insight.store.queries.recorded import SPAN_FRAGMENTS, clock_offsets, recorded_spans
from rl_insight.store.queries.scope import STEP_FRAGMENTS
from rl_insight.store.queries.steps import stepped_spans

GPU_METRICS = ("gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_power_watts")
MAX_GAP_S = 30.0
"""Time between two samples of a GPU that are further apart is unknown."""
_ROWS_AT_ONCE = 2_000_000

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class StateTotals(msgspec.Struct, frozen=True):
    """GPU usage while a role was in a state, summed over GPUs and time."""

    role: str
    name: str
    seconds: float
    """Wall time in the state on all hosts together; lanes of one host that overlap count once."""
    gpus: int
    """GPUs with samples during the state."""
    busy_gpu_seconds: float
    utilization_gpu_seconds: float
    """GPU time for which the utilization is known; `memory_` and `power_gpu_seconds` likewise."""
    memory_byte_seconds: float
    memory_gpu_seconds: float
    energy_joules: float
    power_gpu_seconds: float


class StepEnergy(msgspec.Struct, frozen=True):
    """The energy of all GPUs over a step."""

    step: int
    energy_joules: float
    gpu_seconds: float
    """For how long, over all GPUs, the power was known."""


class GpuTotals(msgspec.Struct, frozen=True):
    """The GPUs of a run, by state and by step."""

    states: list[StateTotals]
    """Those with the most time first."""
    steps: list[StepEnergy]
    """In order; steps without samples are left out."""


class StateUsage(msgspec.Struct, frozen=True):
    """GPU usage while a role was in a state; None where there are no samples."""

    role: str
    name: str
    seconds: float
    """Wall time in the state on all hosts together; lanes of one host that overlap count once."""
    gpus: int
    """GPUs with samples during the state."""
    utilization_ratio: float | None
    memory_used_bytes: float | None
    """The mean of one GPU."""
    energy_joules: float | None
    """Of all GPUs together."""


class UsageByState(msgspec.Struct, frozen=True):
    """GPU usage in each state of each role, and the energy of each step."""

    states: list[StateUsage]
    steps: list[StepEnergy]


_STATES = """
    WITH found AS (
        SELECT role, host, name, step, start_ns + clock_offset_ns AS start_ns,
            start_ns + clock_offset_ns + duration_ns AS end_ns
        FROM {ended} JOIN names USING (name_id) JOIN lanes USING (lane_id) JOIN processes USING (process)
        WHERE {is_state} AND {spans} AND {steps}
        UNION ALL
        SELECT role, host, name, step, start_ns + clock_offset_ns, last_sent_ns + clock_offset_ns
        FROM {opened} JOIN names USING (name_id) JOIN lanes USING (lane_id) JOIN processes USING (process)
        WHERE {is_state} AND {steps}
    ),
    clipped AS (
        SELECT role, host, name, step, greatest(start_ns, $start_ns) AS start_ns, least(end_ns, $end_ns) AS end_ns
        FROM found WHERE greatest(start_ns, $start_ns) < least(end_ns, $end_ns)
    ),
    kinds AS (
        SELECT row_number() OVER (ORDER BY step NULLS FIRST, role, name) - 1 AS kind, role, name, step FROM (
            SELECT DISTINCT role, name, NULL::BIGINT AS step FROM clipped
            UNION ALL SELECT DISTINCT NULL, NULL, step FROM clipped WHERE step IS NOT NULL
        )
    ),
    grouped AS (
        SELECT kind, host, start_ns, max(end_ns) AS end_ns FROM (
            SELECT kind, host, start_ns, end_ns FROM clipped JOIN kinds USING (role, name)
            UNION ALL SELECT kind, host, start_ns, end_ns FROM clipped JOIN kinds USING (step)
        ) GROUP BY ALL
    ),
    reached AS (
        SELECT *, max(end_ns) OVER (
            PARTITION BY kind, host ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached_ns
        FROM grouped
    ),
    starts AS (SELECT * FROM reached WHERE reached_ns IS NULL OR start_ns > reached_ns),
    ends AS (SELECT kind, host, max(end_ns) AS last_ns FROM grouped GROUP BY kind, host)
    -- An island ends at the latest end reached before the next one starts.
    SELECT kind, role, name, step, host, start_ns,
        lead(reached_ns, 1, last_ns) OVER (PARTITION BY kind, host ORDER BY start_ns) AS end_ns
    FROM starts JOIN ends USING (kind, host) JOIN kinds USING (kind)
"""
"""Intervals that do not overlap, by host and kind. A kind is a role's state, or a step; states first."""

_QUANTITIES = """
    SELECT series_id, name, series.labels, host, clock_offset_ns
    FROM series JOIN processes USING (process) WHERE list_contains($metrics, name)
"""
_SAMPLES = """
    FROM sample_data SEMI JOIN (SELECT unnest($series) AS series_id) USING (series_id)
    WHERE isfinite(value) AND time_ns >= $earliest AND time_ns < $latest
"""
_EXTENT = f"SELECT count(*), min(time_ns), max(time_ns) {_SAMPLES}"
_READ_SAMPLES = f"SELECT series_id, time_ns, value {_SAMPLES}"


class GpuScope(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a run to analyze."""

    start_ns: int | None = None
    """Aligned time."""
    end_ns: int | None = None
    """Aligned time, exclusive."""
    first_step: int | None = None
    """Only states of this step and later ones."""
    last_step: int | None = None
    max_gap_s: float = MAX_GAP_S
    """Time between samples of a GPU that are further apart is unknown."""


def usage_of_run(cursor: Cursor, scope: GpuScope | None = None) -> UsageByState:
    """Return how busy the GPUs were in each state ("GPU busy 31% during rollout"), and the energy of each step."""
    totals = gpu_totals(cursor, scope)
    return UsageByState([_usage(state) for state in totals.states], totals.steps)


def _usage(state: StateTotals) -> StateUsage:
    busy = _mean(state.busy_gpu_seconds, state.utilization_gpu_seconds)
    memory = _mean(state.memory_byte_seconds, state.memory_gpu_seconds)
    energy = state.energy_joules if state.power_gpu_seconds > 0 else None
    return StateUsage(state.role, state.name, state.seconds, state.gpus, busy, memory, energy)


def _mean(total: float, seconds: float) -> float | None:
    return total / seconds if seconds > 0 else None


def gpu_totals(cursor: Cursor, scope: GpuScope | None = None) -> GpuTotals:
    """Join the GPUs of a run with its states.

    An open state counts up to its process's last batch; states are clipped to the window.
    """
    scope = scope or GpuScope()
    window = _Window(cursor, scope.start_ns, scope.end_ns, int(scope.max_gap_s * 1e9))
    kinds, islands = _states(cursor, window, scope.first_step, scope.last_step)
    quantities = _GpuQuantities(cursor)
    sums = _Sums(kinds, islands, quantities, window.max_gap_ns)
    series = {"series": quantities.series}
    for first, last in pairwise(window.parts(cursor, series, sums.most_islands)):
        sums.add(first, last, cursor.execute(_READ_SAMPLES, series | window.recorded(first, last)).fetchnumpy())
    return sums.totals()


class _Window:
    """A window of aligned time, and the range of recorded times that covers it."""

    def __init__(self, cursor: Cursor, start_ns: int | None, end_ns: int | None, max_gap_ns: int) -> None:
        self.start_ns = start_ns or 0
        self.end_ns = LAST_TIME_NS if end_ns is None else end_ns
        self.max_gap_ns = max_gap_ns
        self._least_offset, self._most_offset = clock_offsets(cursor)
        self.span_bounds = recorded_spans(cursor, start_ns, end_ns)

    def recorded(self, first_ns: int, last_ns: int) -> Parameters:
        """Return the recorded times of the samples that matter to a part of the window."""
        return {
            "earliest": max(first_ns - self._most_offset - self.max_gap_ns, -LAST_TIME_NS),
            "latest": min(last_ns - self._least_offset + self.max_gap_ns + 1, LAST_TIME_NS),
        }

    def parts(self, cursor: Cursor, series: Parameters, islands: int) -> list[int]:
        """Return the edges of parts of the window whose samples and islands fit into memory."""
        if not islands:
            return []
        extent = cursor.execute(_EXTENT, series | self.recorded(self.start_ns, self.end_ns)).fetchall()
        ((count, earliest, latest),) = extent
        if not count:
            return []
        parts = -(-(count + islands) // _ROWS_AT_ONCE)
        first, last = earliest + self._least_offset, latest + self._most_offset
        cuts = [first + (last - first) * number // parts for number in range(1, parts)]
        return [self.start_ns, *(cut for cut in cuts if self.start_ns < cut < self.end_ns), self.end_ns]


class _Kind(NamedTuple):
    """A role's state, or a step."""

    role: str
    name: str
    step: int | None
    seconds: float


class _Islands(NamedTuple):
    """Intervals in which a host was in a state or a step."""

    kind: Integers
    start_ns: Integers
    end_ns: Integers

    def at(self, rows: NDArray[Any]) -> _Islands:
        return _Islands(self.kind[rows], self.start_ns[rows], self.end_ns[rows])

    def between(self, first_ns: int, last_ns: int) -> _Islands:
        clipped = _Islands(self.kind, np.maximum(self.start_ns, first_ns), np.minimum(self.end_ns, last_ns))
        return clipped.at(clipped.start_ns < clipped.end_ns)


def _states(
    cursor: Cursor, window: _Window, first_step: int | None, last_step: int | None
) -> tuple[list[_Kind], dict[str, _Islands]]:
    """Return the kinds by their numbers, and the islands of each host."""
    spans, spans_given = conditions(SPAN_FRAGMENTS, window.span_bounds)
    steps, steps_given = conditions(STEP_FRAGMENTS, {"first_step": first_step, "last_step": last_step})
    given: Parameters = spans_given | steps_given | {"start_ns": window.start_ns, "end_ns": window.end_ns}
    found = cursor.execute(
        _STATES.format(is_state=IS_STATE, spans=spans, steps=steps, **stepped_spans(cursor)), given
    ).fetchnumpy()
    every = _Islands(found["kind"], found["start_ns"], found["end_ns"])
    _, firsts = np.unique(every.kind, return_index=True)
    seconds = np.bincount(every.kind, every.end_ns - every.start_ns) / 1e9
    columns = (found[name][firsts].tolist() for name in ("role", "name", "step"))
    kinds = [_Kind(*fields) for fields in zip(*columns, seconds.tolist(), strict=True)]
    hosts, numbers = np.unique(found["host"].astype(str), return_inverse=True)
    return kinds, {str(hosts[number]): every.at(rows) for number, rows in by_group(numbers)}


class _GpuQuantity(NamedTuple):
    """One quantity of one GPU."""

    metric: str
    gpu: DeviceId


class _GpuQuantities:
    """The quantities of all GPUs; one may have several series, for example after a restart."""

    def __init__(self, cursor: Cursor) -> None:
        found = cursor.execute(_QUANTITIES, {"metrics": list(GPU_METRICS)}).fetchall()
        self.series: list[int] = [series_id for series_id, *_ in found]
        self.number, self.offset_ns = np.zeros((2, max(self.series, default=0) + 1), np.int64)
        """The quantity of a series, and its clock offset."""
        numbers: dict[_GpuQuantity, int] = {}
        for series_id, metric, labels, host, offset_ns in found:
            gpu = device_of(read_object(labels), host, default_gpu="0")
            self.number[series_id] = numbers.setdefault(_GpuQuantity(metric, gpu), len(numbers))
            self.offset_ns[series_id] = offset_ns
        self.all = list(numbers)


class _Sums:
    """Sums samples over states and steps."""

    def __init__(
        self, kinds: list[_Kind], islands: dict[str, _Islands], quantities: _GpuQuantities, max_gap_ns: int
    ) -> None:
        self._kinds = kinds
        self._islands = islands
        self._quantities = quantities
        self._max_gap_ns = max_gap_ns
        gpus = dict.fromkeys(quantity.gpu for quantity in quantities.all)
        numbers = {gpu: number for number, gpu in enumerate(gpus)}
        self._gpu = np.array([numbers[quantity.gpu] for quantity in quantities.all], np.int64)
        self._metric = np.array([GPU_METRICS.index(quantity.metric) for quantity in quantities.all], np.int64)
        self._known_s, self._areas = np.zeros((2, len(GPU_METRICS), len(kinds)))
        self._is_known = np.zeros((len(gpus), len(kinds)), bool)
        counts = Counter(quantity.gpu.host for quantity in quantities.all)
        self.most_islands = max(
            (count * len(islands[host].kind) for host, count in counts.items() if host in islands), default=0
        )
        """The maximum over hosts of quantities times islands, which are processed together."""

    def add(self, first_ns: int, last_ns: int, samples: dict[str, NDArray[Any]]) -> None:
        """Add one part of the window, from the samples in it and around it."""
        series_id = samples["series_id"]
        if not len(series_id):
            return
        numbers, times = self._quantities.number[series_id], samples["time_ns"] + self._quantities.offset_ns[series_id]
        order, bounds = group_order(numbers)
        goes_back = np.diff(times[order]) < 0
        goes_back[np.array(bounds[1:-1], np.int64) - 1] = False
        if goes_back.any():
            order = np.lexsort((times, numbers))
        times, values = times[order], samples["value"][order]
        together: dict[tuple[str, bytes], list[tuple[int, Floats]]] = {}
        for number, (begin, end) in zip(numbers[order[bounds[:-1]]].tolist(), pairwise(bounds), strict=True):
            # All quantities of a host's GPUs are sampled at the same times: one lookup serves all of them.
            key = self._quantities.all[number].gpu.host, times[begin:end].tobytes()
            together.setdefault(key, []).append((number, values[begin:end]))
        islands = {host: own.between(first_ns, last_ns) for host, own in self._islands.items()}
        for (host, own_times), quantities in together.items():
            if host in islands and len(islands[host].kind):
                integrals = _Integrals(
                    np.frombuffer(own_times, np.int64), [own for _, own in quantities], self._max_gap_ns
                )
                self._add_integrals([number for number, _ in quantities], integrals, islands[host])

    def _add_integrals(self, numbers: list[int], integrals: _Integrals, islands: _Islands) -> None:
        known_s, areas = (
            after - before
            for before, after in zip(integrals.until(islands.start_ns), integrals.until(islands.end_ns), strict=True)
        )
        order, (*firsts, _) = group_order(islands.kind)
        kinds = islands.kind[order[firsts]]
        known_s = np.add.reduceat(known_s[order], firsts)
        place = (self._metric[numbers][:, None], kinds)
        np.add.at(self._known_s, place, known_s)
        np.add.at(self._areas, place, np.add.reduceat(areas[:, order], firsts, axis=1))
        self._is_known[self._gpu[numbers][:, None], kinds[known_s > 0]] = True

    def totals(self) -> GpuTotals:
        """Return the sums."""
        gpus = self._is_known.sum(axis=0).tolist()
        # Area and known time of each metric in turn, in the order of the struct; the energy is last.
        columns = np.stack((self._areas, self._known_s), axis=1).reshape(2 * len(GPU_METRICS), -1).T.tolist()
        states, steps = [], []
        for kind, known, sums in zip(self._kinds, gpus, columns, strict=True):
            *_, energy, known_s = sums
            if kind.step is None:
                states.append(StateTotals(kind.role, kind.name, kind.seconds, known, *sums))
            elif known_s > 0:
                steps.append(StepEnergy(kind.step, energy, known_s))
        return GpuTotals(sorted(states, key=lambda state: (-state.seconds, state.role, state.name)), steps)


class _Integrals:
    """The integrals of quantities that were sampled at the same times.

    Args:
        times: of the samples.
        values: of the samples, a row for each quantity.
        max_gap_ns: the time between samples that are further apart is unknown.
    """

    def __init__(self, times: Integers, values: list[Floats], max_gap_ns: int) -> None:
        self._times, self._values = times, np.stack(values)
        widths = np.diff(times, append=times[-1])  # after the last sample, as in a gap, nothing is known
        self._widths_s = np.where(widths <= max_gap_ns, widths, 0) / 1e9
        self._rises = np.diff(self._values, append=self._values[:, -1:])
        self._known_s = _before(self._widths_s)
        self._areas = _before(self._widths_s * (self._values + self._rises / 2))

    def until(self, until_ns: Integers) -> tuple[Floats, Floats]:
        """Return for how long the quantities were known up to the given times, and the area under each."""
        places = np.maximum(np.searchsorted(self._times, until_ns, side="right") - 1, 0)
        widths_s = self._widths_s[places]
        # Nothing is known before the first sample.
        into_s = np.maximum(until_ns - self._times[places], 0) / 1e9 * (widths_s > 0)
        share = into_s / np.where(widths_s > 0, widths_s, 1.0)
        area = into_s * (self._values[:, places] + self._rises[:, places] * share / 2)
        return self._known_s[places] + into_s, self._areas[:, places] + area


def _before(amounts: Floats) -> Floats:
    """Return the sum of the amounts before each one in a row."""
    return np.cumsum(amounts, axis=-1) - amounts
