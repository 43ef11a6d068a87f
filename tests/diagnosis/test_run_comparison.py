"""Comparison of two runs: figures computed by hand, and the resulting sentence."""

from __future__ import annotations

import json
import time

import pytest

from rl_insight.diagnosis.run_comparison import IDLE, STEP, Pair, compare_runs
from rl_insight.schema import BatchBuilder, Process
from rl_insight.schema.names import CONFIG_EVENT
from rl_insight.store import RunStore

SECOND = 1_000_000_000
BEGIN_NS = 1_760_000_000_000_000_000


@pytest.fixture
def make_run(tmp_path):
    """Record a run of four steps: generate, then update, then idle until the step ends."""
    opened = []

    def make(run_id, *, generate_s, update_s, step_s, reward, config=None, first=0, steps=5, tool_s=None):
        builder = BatchBuilder()
        number = 0
        for step in range(first, first + steps):
            start = BEGIN_NS + int((step - first) * step_s * SECOND)
            for name, offset_s, length_s in (("generate", 0, generate_s), ("update", generate_s, update_s)):
                number += 1
                builder.add_span(
                    span_id=number,
                    trace=(1, 2),
                    name=name,
                    start_ns=start + int(offset_s * SECOND),
                    duration_ns=int(length_s * SECOND),
                    segment="state_interval",
                    step=step,
                )
            for offset_s in (0, 1) if tool_s is not None else ():  # two that overlap by all but a second
                number += 1
                start_ns, duration_ns = start + offset_s * SECOND, int(tool_s * SECOND)
                builder.add_span(
                    span_id=number, trace=(1, 2), name="tool", start_ns=start_ns, duration_ns=duration_ns, step=step
                )
            series = builder.add_series("reward_mean", "gauge", "", "{}")
            builder.add_sample(series, time_ns=start, value=reward + (step - first) * 0.1, step=step)
        if config is not None:
            builder.add_event(time_ns=BEGIN_NS, name=CONFIG_EVENT, attributes=json.dumps(config))
        process = Process(process_id=run_id, run_id=run_id, host="node", pid=1, role="trainer", rank=0)
        store = RunStore(tmp_path / f"{run_id}.duckdb", min_free_bytes=0, create=True)
        opened.append(store)
        store.commit([builder.build(process, sequence=1, sent_ns=time.time_ns())])
        return store

    yield make
    for store in opened:
        store.close()


def compared(one, other):
    with one.reader() as first, other.reader() as second:
        return compare_runs(first, second)


def test_the_figures_are_means_over_common_finished_steps(make_run):
    slow = make_run("slow", generate_s=16, update_s=6, step_s=25, reward=0.3)
    found = compared(make_run("usual", generate_s=12, update_s=6, step_s=20, reward=0.5), slow)
    assert (found.first, found.second) == ("usual", "slow")
    # Steps 0 to 3 are finished; the fifth is still running.
    assert (found.steps, found.first_step, found.last_step) == (4, 0, 3)
    assert found.times[0] == Pair(STEP, 20.0, 25.0)
    assert {(one.name, one.first, one.second) for one in found.times[1:]} == {
        ("generate", 12.0, 16.0),
        ("update", 6.0, 6.0),
        (IDLE, 2.0, 3.0),
    }
    (reward,) = found.metrics
    assert (reward.first, reward.second) == pytest.approx((0.65, 0.45))
    assert found.sentence == (
        "Steps take 25.0 s instead of 20.0 s (+25%), mostly because of generate (+4.00 s) and idle (+1.00 s); "
        "reward_mean is 0.45 instead of 0.65 (-31%)."
    )


def test_equal_runs_hardly_differ(make_run):
    facts = {"generate_s": 12, "update_s": 6, "step_s": 20, "reward": 0.5}
    found = compared(make_run("one", **facts, config={"lr": 1.0}), make_run("two", **facts, config={"lr": 1.0}))
    assert found.sentence == "Steps take about the same time, 20.0 s."
    assert found.config == []


def test_the_configuration_is_compared_also_without_common_steps(make_run):
    facts = {"generate_s": 12, "update_s": 6, "step_s": 20, "reward": 0.5}
    one = make_run("one", **facts, config={"lr": 1e-6, "seed": 1, "kl": None})
    other = make_run("two", **facts, config={"lr": 1e-5, "seed": 1, "beta": 0.1}, first=100)
    found = compared(one, other)
    assert [(row.key, row.first, row.second) for row in found.config] == [
        ("beta", None, 0.1),
        ("kl", None, None),
        ("lr", 1e-6, 1e-5),
    ]
    assert found.sentence == ("They have no finished steps in common; 3 configuration values differ: beta, kl, lr.")


def rows_of(found):
    return [(row.name, row.kind, row.first_s, row.second_s, row.difference_s, row.ratio) for row in found.wall_times]


def test_the_table_of_times_agrees_with_the_sentence(make_run):
    one = make_run("usual", generate_s=12, update_s=6, step_s=20, reward=0.5, tool_s=2)
    found = compared(one, make_run("slow", generate_s=16, update_s=6, step_s=25, reward=0.5, tool_s=4))
    assert found.is_per_step
    assert rows_of(found) == [
        (STEP, "step", 20.0, 25.0, 5.0, 1.25),
        ("generate", "phase", 12.0, 16.0, 4.0, pytest.approx(4 / 3)),
        ("tool", "span", 3.0, 5.0, 2.0, pytest.approx(5 / 3)),
        (IDLE, "idle", 2.0, 3.0, 1.0, 1.5),
        ("update", "phase", 6.0, 6.0, 0.0, 1.0),
    ]
    p95 = {row.name: (row.first_p95_s, row.second_p95_s) for row in found.wall_times}
    assert p95 == {STEP: (None, None), IDLE: (None, None)} | {
        "generate": (12.0, 16.0),
        "tool": (2.0, 4.0),
        "update": (6.0, 6.0),
    }


def test_the_times_of_a_long_run_are_of_one_step(make_run):
    """Of 1,500 steps, the last 1,000 are compared: the time of 1,500 divided by 1,000 would be half as much again."""
    facts = {"generate_s": 12, "update_s": 6, "step_s": 20, "reward": 0.5, "tool_s": 2, "steps": 1500}
    found = compared(make_run("one", **facts), make_run("two", **facts))
    times = {row.name: (row.first_s, row.second_s) for row in found.wall_times}
    assert times == {"step": (20, 20), "generate": (12, 12), "update": (6, 6), "idle": (2, 2), "tool": (3, 3)}


def test_runs_of_different_lengths_are_compared_over_the_same_steps(make_run):
    """The second run goes on for longer, and its running step has not taken a whole one yet."""
    facts = {"generate_s": 12, "update_s": 6, "step_s": 20, "reward": 0.5, "tool_s": 2}
    found = compared(make_run("one", **facts), make_run("two", **facts, steps=40))
    assert {row.ratio for row in found.wall_times} == {1.0}
    assert {row.name: row.first_s for row in found.wall_times}["tool"] == 3.0


def test_without_common_steps_each_run_is_divided_by_its_own(make_run):
    one = make_run("one", generate_s=12, update_s=6, step_s=20, reward=0.5)
    found = compared(one, make_run("two", generate_s=6, update_s=6, step_s=20, reward=0.5, first=100, steps=9))
    assert (found.steps, found.is_per_step) == (0, True)
    assert rows_of(found) == [("generate", "span", 12.0, 6.0, -6.0, 0.5), ("update", "span", 6.0, 6.0, 0.0, 1.0)]


def test_without_finished_steps_the_entire_runs_are_compared(make_run):
    one = make_run("one", generate_s=12, update_s=6, step_s=20, reward=0.5, steps=1)
    found = compared(one, make_run("two", generate_s=12, update_s=6, step_s=20, reward=0.5, steps=3, tool_s=2))
    assert (found.steps, found.is_per_step) == (0, False)
    assert rows_of(found) == [
        ("generate", "span", 12.0, 36.0, 24.0, 3.0),
        ("update", "span", 6.0, 18.0, 12.0, 3.0),
        ("tool", "span", None, 9.0, 9.0, None),
    ]
