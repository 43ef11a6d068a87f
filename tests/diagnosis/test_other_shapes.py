"""Rules are general: they also work for runs with other names, time scales and numbers of ranks."""

from __future__ import annotations

import pytest

from benchmarks.diagnosis_script import BEGIN_S, SECOND, Script
from benchmarks.diagnosis_shapes import (
    browsing_agents,
    busy_machine,
    curriculum,
    long_steps,
    probed,
    quick_calls,
    quick_learners,
    timed_by_metrics,
    without_steps,
)
from rl_insight.diagnosis.run import replay
from rl_insight.store.queries import top_findings
from rl_insight.store.run_store import RunStore


def some_long_steps(script, store, fault):
    return long_steps(script, store, fault, ranks=24, steps=14)


@pytest.fixture
def diagnosed(tmp_path):
    def diagnose(shape, fault=""):
        with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
            planted = shape(Script(7), store, fault)
            with store.reader() as cursor:
                return replay(cursor), planted

    return diagnose


@pytest.mark.parametrize(
    "shape",
    [quick_learners, some_long_steps, browsing_agents, timed_by_metrics, probed, without_steps, curriculum,
     busy_machine, quick_calls],
)  # fmt: skip
def test_healthy_runs_are_quiet(diagnosed, shape):
    report, _ = diagnosed(shape)
    assert [one.title for one in report.findings if one.severity != "info"] == []


@pytest.mark.parametrize(("shape", "rank", "phase"), [(quick_learners, 2, "fwd_bwd"), (some_long_steps, 7, "optimize")])
def test_a_straggler_is_named(diagnosed, shape, rank, phase):
    report, _ = diagnosed(shape, "straggler")
    (found,) = [one for one in top_findings(report.findings) if one.severity != "info"]
    assert (found.rule, found.culprit["rank"], found.culprit["phase"]) == ("straggler", rank, phase)


def test_a_stall_is_named_within_30_seconds(diagnosed):
    report, planted = diagnosed(quick_learners, "stall")
    (found,) = [one for one in top_findings(report.findings) if one.severity != "info"]
    assert (found.rule, found.culprit["rank"], found.culprit["phase"]) == ("stalled_run", 1, "fwd_bwd")
    assert report.opened_ns[found.finding_id] / SECOND - BEGIN_S - planted.onset_s <= 30.0


def test_a_slow_tool_is_named(diagnosed):
    report, _ = diagnosed(browsing_agents, "slow_tool")
    found = [one for one in top_findings(report.findings) if one.severity != "info"]
    assert ("slow_tool", "browser") in {(one.rule, one.culprit.get("tool")) for one in found}


@pytest.mark.parametrize(
    ("shape", "fault", "rule", "culprit"),
    [
        (timed_by_metrics, "slow_train", "step_regression", {"phase": "timing/policy_train"}),
        (
            timed_by_metrics, "slow_reward", "slow_reward",
            {"phase": "profiling/Time taken: GRPOTrainer.math_reward"},
        ),
        (probed, "slow_fit", "step_regression", {"phase": "fit"}),
        (without_steps, "hang", "stalled_run", {"rank": 0, "phase": "crunch"}),
        (curriculum, "untold", "reward_drop", {"metric": "reward"}),
        (busy_machine, "slow_update", "step_regression", {"phase": "update"}),
        (busy_machine, "slow_worker", "straggler", {"role": "rollout", "rank": 1}),
        (busy_machine, "slow_tool", "slow_tool", {"tool": "calculator"}),
        (quick_calls, "slow_worker", "straggler", {"role": "rollout", "rank": 1}),
    ],
)  # fmt: skip
def test_a_fault_is_named(diagnosed, shape, fault, rule, culprit):
    report, _ = diagnosed(shape, fault)
    loud = [one for one in top_findings(report.findings) if one.severity != "info"]
    assert any(one.rule == rule and culprit.items() <= one.culprit.items() for one in loud), loud
