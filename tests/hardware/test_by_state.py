from __future__ import annotations

from itertools import pairwise
from math import isnan, nan
from typing import NamedTuple
from unittest.mock import patch

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_insight.store.queries import hardware
from rl_insight.store.queries.hardware import GpuScope, gpu_totals
from rl_insight.store.tables import LONG_SPAN_NS, migrate

SECOND = 10**9
START = 1_700_000_000 * SECOND
METRICS = {"util": "gpu_utilization_ratio", "memory": "gpu_memory_used_bytes", "power": "gpu_power_watts"}


def at(seconds):
    return START + int(seconds * SECOND)


class State(NamedTuple):
    name: str
    start: float
    end: float | None
    """None: it is open."""
    role: str = "rollout"
    host: str = "a"
    step: int | None = None
    segment: str = "state_interval"


class Sample(NamedTuple):
    time: float
    util: float = nan
    memory: float = nan
    power: float = nan
    host: str = "a"
    gpu: str = "0"


class Run:
    """The tables of a run, in memory. Hosts are processes; their clocks differ by `offsets` seconds."""

    def __init__(self):
        self.cursor = duckdb.connect()
        migrate(self.cursor)

    def fill(self, states, samples, *, offsets=None, last_word=100.0):
        for table in ("processes", "lanes", "names", "span_data", "open_span_data", "long_spans", "series"):
            self.cursor.execute(f"DELETE FROM {table}")
        self.cursor.execute("DELETE FROM sample_data")
        self.offsets = offsets or {}
        self.last_word = last_word
        self.processes, self.names, self.series = {}, {}, {}
        for number, state in enumerate(states, 1):
            self._add_state(number, state)
        for sample in samples:
            for field, metric in METRICS.items():
                self._add_sample(metric, sample, getattr(sample, field))
        return self

    def _process(self, host, role):
        key = (host, role)
        if key not in self.processes:
            number = self.processes[key] = len(self.processes)
            offset = int(self.offsets.get(host, 0) * SECOND)
            self._insert("processes", process=number, host=host, role=role, clock_offset_ns=offset)
            last_word = at(self.last_word) - offset
            self.cursor.execute(f"UPDATE processes SET last_sent_ns = {last_word} WHERE process = {number}")
            self._insert("lanes", lane_id=number, process=number, lane=None)
        return self.processes[key]

    def _add_state(self, span_id, state):
        lane = self._process(state.host, state.role)
        if state.name not in self.names:
            self.names[state.name] = len(self.names)
            self._insert("names", name_id=self.names[state.name], name=state.name)
        start_ns = at(state.start) - int(self.offsets.get(state.host, 0) * SECOND)
        duration_ns = -1 if state.end is None else at(state.end) - at(state.start)
        place = {"span_id": span_id, "lane_id": lane, "name_id": self.names[state.name], "depth": 0}
        times = {"start_ns": start_ns, "duration_ns": duration_ns}
        table = "open_span_data" if state.end is None else "span_data"
        self._insert(table, **place, **times, segment=state.segment, step=state.step)
        if duration_ns >= LONG_SPAN_NS:
            self._insert("long_spans", **place, **times)

    def _add_sample(self, metric, sample, value):
        process = self._process("driver", "driver")
        key = (metric, sample.host, sample.gpu)
        if key not in self.series:
            self.series[key] = len(self.series)
            labels = f'{{"host": "{sample.host}", "gpu": "{sample.gpu}"}}'
            self._insert("series", series_id=self.series[key], process=process, name=metric, labels=labels)
        self._insert("sample_data", series_id=self.series[key], time_ns=at(sample.time), value=value)

    def _insert(self, table, **values):
        marks = ", ".join("?" for _ in values)
        self.cursor.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", list(values.values()))

    def totals(self, **window):
        return gpu_totals(self.cursor, GpuScope(**window))


@pytest.fixture(scope="module")
def run():
    return Run()


def test_busy_share_is_weighted_by_time(run):
    samples = [Sample(0, 0.0, 10.0, 100.0), Sample(10, 0.0, 10.0, 100.0), Sample(10.001, 1.0, 10.0, 300.0)]
    samples.append(Sample(20, 1.0, 10.0, 300.0))
    rollout, train = run.fill([State("rollout", 0, 10), State("train", 10, 20)], samples).totals().states
    assert (rollout.name, train.name) == ("rollout", "train")
    assert rollout.busy_gpu_seconds == pytest.approx(0.0)
    assert train.busy_gpu_seconds == pytest.approx(10.0, abs=1e-2)
    assert train.energy_joules == pytest.approx(3000.0, rel=1e-3)
    assert train.memory_byte_seconds == pytest.approx(100.0)
    assert train.memory_gpu_seconds == train.power_gpu_seconds == pytest.approx(10.0)


def test_overlapping_lanes_of_a_host_count_once(run):
    states = [State("gen", 0, 6), State("gen", 4, 10), State("gen", 4, 6), State("gen", 0, 6)]
    (usage,) = run.fill(states, [Sample(0, power=100.0), Sample(10, power=100.0)]).totals().states
    assert usage.seconds == pytest.approx(10.0)
    assert usage.energy_joules == pytest.approx(1000.0)
    assert usage.utilization_gpu_seconds == 0.0


def test_gap_between_samples_is_unknown(run):
    samples = [Sample(0, 1.0), Sample(10, 1.0), Sample(90, 0.0)]
    (usage,) = run.fill([State("train", 0, 100)], samples).totals().states
    assert (usage.seconds, usage.utilization_gpu_seconds, usage.busy_gpu_seconds) == (100.0, 10.0, 10.0)


def test_state_without_samples_has_no_figures(run):
    (usage,) = run.fill([State("train", 0, 10, host="b")], [Sample(0, 1.0), Sample(10, 1.0)]).totals().states
    assert (usage.gpus, usage.utilization_gpu_seconds, usage.power_gpu_seconds) == (0, 0.0, 0.0)


def test_nothing_gives_nothing(run):
    assert run.fill([], [Sample(0, 1.0)]).totals().states == []
    assert run.fill([State("train", 0, 10, step=1)], []).totals().steps == []


def test_spans_that_are_not_states_are_left_out(run):
    states = [State("op", 0, 10, segment="duration"), State("tool", 0, 10, segment="phase")]
    assert [state.name for state in run.fill(states, [Sample(0, 1.0)]).totals().states] == ["tool"]


def test_energy_of_each_step(run):
    states = [State("gen", 0, 5, step=1), State("train", 5, 10, step=1), State("gen", 10, 15, step=2)]
    samples = [Sample(time, power=100.0, gpu=gpu) for time in range(0, 21, 5) for gpu in "01"]
    run.fill(states, samples)
    steps = [(row.step, row.energy_joules, row.gpu_seconds) for row in run.totals().steps]
    assert steps == [(1, 2000.0, 20.0), (2, 1000.0, 10.0)]
    assert [row.step for row in run.totals(first_step=2).steps] == [2]
    assert [row.step for row in run.totals(last_step=1).steps] == [1]


def test_open_state_counts_up_to_its_processes_last_word(run):
    samples = [Sample(0, 0.5), Sample(20, 0.5)]
    (usage,) = run.fill([State("gen", 5, None)], samples, last_word=15.0, offsets={"a": 3.0}).totals().states
    assert (usage.seconds, usage.busy_gpu_seconds) == (10.0, pytest.approx(5.0))


def test_only_what_lies_in_the_window_counts(run):
    samples = [Sample(time, 1.0) for time in range(0, 101, 5)]
    run.fill([State("gen", 0, 40), State("train", 40, 100), State("late", 90, 100)], samples)
    window = run.totals(start_ns=at(30), end_ns=at(60)).states
    assert [(state.name, state.seconds, state.busy_gpu_seconds) for state in window] == [
        ("train", 20.0, pytest.approx(20.0)),
        ("gen", 10.0, pytest.approx(10.0)),
    ]


def test_clocks_of_hosts_are_aligned(run):
    samples = [Sample(0, 0.0), Sample(10, 0.0), Sample(10.001, 1.0), Sample(20, 1.0)]
    run.fill([State("train", 10, 20)], samples, offsets={"a": -3600.0})
    for window in ({}, {"start_ns": at(5), "end_ns": at(25)}):
        (usage,) = run.totals(**window).states
        assert usage.busy_gpu_seconds == pytest.approx(10.0, abs=1e-2)


# -- against an oracle that walks through time in quarters of a second

TICKS = 4
times = st.integers(0, 40)
values = st.one_of(st.just(nan), st.floats(0, 1000, allow_nan=False))
all_states = st.lists(
    st.builds(
        lambda name, host, start, length, step: State(
            name, start / TICKS, (start + length) / TICKS, host=host, step=step
        ),
        st.sampled_from(["gen", "train"]),
        st.sampled_from("ab"),
        times,
        st.integers(0, 12),
        st.sampled_from([None, 1, 2]),
    ),
    max_size=6,
)
all_samples = st.lists(
    st.builds(
        lambda time, host, gpu, value: Sample(time / TICKS, value, value, value, host=host, gpu=gpu),
        times,
        st.sampled_from("ab"),
        st.sampled_from("01"),
        values,
    ),
    max_size=20,
    unique_by=lambda row: (row.time, row.host, row.gpu),
)


def oracle(states, samples, max_gap_s):
    """Add up the quarter seconds that are in a state and between two samples that are close enough."""
    area = seconds = 0.0
    for host, gpu in {(row.host, row.gpu) for row in samples}:
        known = sorted((r.time, r.power) for r in samples if (r.host, r.gpu) == (host, gpu))
        known = [(time, value) for time, value in known if not isnan(value)]
        for tick in range(60):
            start, middle = tick / TICKS, (tick + 0.5) / TICKS
            inside = any(s.host == host and s.start <= start and middle < s.end for s in states)
            around = [(a, b) for a, b in pairwise(known) if a[0] < middle < b[0] and b[0] - a[0] <= max_gap_s]
            if inside and around:
                (t0, v0), (t1, v1) = around[0]
                area += (v0 + (v1 - v0) * (middle - t0) / (t1 - t0)) / TICKS
                seconds += 1 / TICKS
    return pytest.approx(area, rel=1e-6, abs=1e-6), pytest.approx(seconds)


@given(all_states, all_samples, st.sampled_from([1.0, 2.5, 100.0]), st.sampled_from([2, 7, 1000]))
def test_agrees_with_a_walk_through_time(run, states, samples, max_gap_s, rows_at_once):
    with patch.object(hardware, "_ROWS_AT_ONCE", rows_at_once):
        totals = run.fill(states, samples).totals(max_gap_s=max_gap_s)
    assert {state.name for state in totals.states} == {state.name for state in states if state.end > state.start}
    for usage in totals.states:
        expected = oracle([state for state in states if state.name == usage.name], samples, max_gap_s)
        assert (usage.energy_joules, usage.power_gpu_seconds) == expected
        assert (usage.busy_gpu_seconds, usage.utilization_gpu_seconds) == expected
        assert (usage.memory_byte_seconds, usage.memory_gpu_seconds) == expected
    for row in totals.steps:
        expected = oracle([state for state in states if state.step == row.step], samples, max_gap_s)
        assert (row.energy_joules, row.gpu_seconds) == expected


@given(all_states, all_samples, times)
def test_two_windows_add_up_to_the_whole(run, states, samples, cut):
    run.fill(states, samples)
    whole = {state.name: state for state in run.totals().states}
    parts = [*run.totals(end_ns=at(cut / TICKS)).states, *run.totals(start_ns=at(cut / TICKS)).states]
    for name, state in whole.items():
        for field in ("seconds", "busy_gpu_seconds", "power_gpu_seconds"):
            added = sum(getattr(part, field) for part in parts if part.name == name)
            assert added == pytest.approx(getattr(state, field), abs=1e-6)
