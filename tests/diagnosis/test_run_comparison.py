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

    def make(run_id, *, generate_s, update_s, step_s, reward, config=None, first=0):
        builder = BatchBuilder()
        number = 0
        for step in range(first, first + 5):
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
