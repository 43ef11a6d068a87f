"""Rules are general: they hold for runs with other names, time scales and numbers of ranks than the suite's."""

from __future__ import annotations

import pytest

from benchmarks.diagnosis_script import BEGIN_S, SECOND, Script
from benchmarks.diagnosis_shapes import browsing_agents, long_steps, quick_learners
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


@pytest.mark.parametrize("shape", [quick_learners, some_long_steps, browsing_agents])
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
