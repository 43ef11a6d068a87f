from __future__ import annotations

from itertools import pairwise
from math import isnan, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_insight.hardware.by_state import GpuSample, StateInterval, energy_by_step, usage_by_state

SECOND = 10**9
START = 1_700_000_000 * SECOND


def at(seconds):
    return START + int(seconds * SECOND)


def state(name, start, end, *, role="rollout", host="a", lane="l", step=None, gpus=None):
    return StateInterval(lane, role, host, name, at(start), at(end), step, gpus)


def sample(time, util=nan, memory=nan, power=nan, *, host="a", gpu="0"):
    return GpuSample(host, gpu, at(time), util, memory, power)


def test_busy_share_is_weighted_by_time():
    samples = [sample(0, 0.0, 10.0, 100.0), sample(10, 0.0, 10.0, 100.0), sample(10.001, 1.0, 10.0, 300.0)]
    samples.append(sample(20, 1.0, 10.0, 300.0))
    train, rollout = usage_by_state([state("rollout", 0, 10), state("train", 10, 20)], samples)
    assert (train.name, rollout.name) == ("rollout", "train")
    assert train.utilization_ratio == pytest.approx(0.0)
    assert rollout.utilization_ratio == pytest.approx(1.0, abs=1e-3)
    assert rollout.energy_joules == pytest.approx(3000.0, rel=1e-3)
    assert rollout.memory_used_bytes == pytest.approx(10.0)


def test_overlapping_lanes_of_a_host_count_once():
    states = [state("gen", 0, 6, lane="l0"), state("gen", 4, 10, lane="l1")]
    (usage,) = usage_by_state(states, [sample(0, power=100.0), sample(10, power=100.0)])
    assert usage.seconds == pytest.approx(10.0)
    assert usage.energy_joules == pytest.approx(1000.0)
    assert usage.utilization_ratio is None


def test_lane_that_names_its_gpus_is_joined_with_those_alone():
    samples = [sample(time, 0.2 + 0.6 * (gpu == "1"), gpu=gpu) for time in (0, 10) for gpu in "01"]
    (usage,) = usage_by_state([state("train", 0, 10, gpus=("1",))], samples)
    assert (usage.gpus, usage.utilization_ratio) == (1, pytest.approx(0.8))


def test_gap_between_samples_is_unknown():
    (usage,) = usage_by_state([state("train", 0, 100)], [sample(0, 1.0), sample(10, 1.0), sample(90, 0.0)])
    assert usage.utilization_ratio == pytest.approx(1.0)


def test_state_without_samples_has_no_figures():
    (usage,) = usage_by_state([state("train", 0, 10, host="b")], [sample(0, 1.0), sample(10, 1.0)])
    assert (usage.utilization_ratio, usage.energy_joules, usage.gpus) == (None, None, 0)


def test_nothing_gives_nothing():
    assert usage_by_state([], [sample(0, 1.0)]) == []
    assert energy_by_step([state("train", 0, 10)], []) == []


def test_energy_of_each_step():
    states = [state("gen", 0, 5, step=1), state("train", 5, 10, step=1), state("gen", 10, 15, step=2)]
    samples = [sample(time, power=100.0, gpu=gpu) for time in range(0, 21, 5) for gpu in "01"]
    energies = energy_by_step(states, samples)
    assert [(row.step, row.energy_joules, row.gpu_seconds) for row in energies] == [
        (1, pytest.approx(2000.0), pytest.approx(20.0)),
        (2, pytest.approx(1000.0), pytest.approx(10.0)),
    ]


# -- against an oracle that walks through time in quarters of a second

TICKS = 4
times = st.integers(0, 40)
values = st.one_of(st.just(nan), st.floats(0, 1000, allow_nan=False))
all_states = st.lists(
    st.builds(
        lambda name, host, start, length, gpus, step: state(
            name, start / TICKS, (start + length) / TICKS, host=host, gpus=gpus, step=step
        ),
        st.sampled_from(["gen", "train"]),
        st.sampled_from("ab"),
        times,
        st.integers(0, 12),
        st.sampled_from([None, ("0",), ("0", "1")]),
        st.sampled_from([None, 1, 2]),
    ),
    max_size=6,
)
all_samples = st.lists(
    st.builds(
        lambda time, host, gpu, value: sample(time / TICKS, value, value, value, host=host, gpu=gpu),
        times,
        st.sampled_from("ab"),
        st.sampled_from("01"),
        values,
    ),
    max_size=30,
    unique_by=lambda row: (row.time_ns, row.host, row.gpu),
)


def oracle(states, samples, max_gap_s):
    """Add up the quarters of a second that lie in a state and between two samples that are close enough."""
    area = seconds = 0.0
    for host, gpu in {(row.host, row.gpu) for row in samples}:
        known = sorted((r.time_ns, r.power_watts) for r in samples if (r.host, r.gpu) == (host, gpu))
        known = [(time, value) for time, value in known if not isnan(value)]
        for tick in range(60):
            start, middle = at(tick / TICKS), at((tick + 0.5) / TICKS)
            inside = any(
                s.host == host and (s.gpus is None or gpu in s.gpus) and s.start_ns <= start and middle < s.end_ns
                for s in states
            )
            around = [
                (left, right)
                for left, right in pairwise(known)
                if left[0] < middle < right[0] and right[0] - left[0] <= max_gap_s * SECOND
            ]
            if inside and around:
                (t0, v0), (t1, v1) = around[0]
                area += (v0 + (v1 - v0) * (middle - t0) / (t1 - t0)) / TICKS
                seconds += 1 / TICKS
    return area, seconds


@settings(max_examples=150, deadline=None)
@given(all_states, all_samples, st.sampled_from([1.0, 2.5, 100.0]))
def test_agrees_with_a_walk_through_time(states, samples, max_gap_s):
    for usage in usage_by_state(states, samples, max_gap_s=max_gap_s):
        group = [s for s in states if (s.role, s.name) == (usage.role, usage.name)]
        area, seconds = oracle(group, samples, max_gap_s)
        if seconds == 0:
            assert (usage.energy_joules, usage.utilization_ratio) == (None, None)
            continue
        assert usage.energy_joules == pytest.approx(area, rel=1e-6, abs=1e-6)
        assert usage.utilization_ratio == pytest.approx(area / seconds, rel=1e-6, abs=1e-6)
    for row in energy_by_step(states, samples, max_gap_s=max_gap_s):
        area, seconds = oracle([s for s in states if s.step == row.step], samples, max_gap_s)
        assert (row.energy_joules, row.gpu_seconds) == (
            pytest.approx(area, rel=1e-6, abs=1e-6),
            pytest.approx(seconds),
        )
