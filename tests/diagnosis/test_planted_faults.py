"""Injected faults are reported with their culprit; healthy runs have no findings."""

from __future__ import annotations

import pytest

from benchmarks.diagnosis import CASES, Case, diagnose, judge

QUICK = {
    ("ppo8", "straggler"), ("ppo8", "collective_hang"), ("ppo8", "stalled_run"), ("async", "slow_tool"),
    ("async", "stuck_tool"), ("async", "dead_engine"), ("verl", "reward_drop"), ("verl", "stalled_run"),
    ("sft", "non_finite"), ("sft", "straggler"),
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [one for one in CASES if (one.shape, one.fault) in QUICK], ids=lambda c: f"{c.shape}-{c.fault}"
)
def test_planted_fault_is_named(case: Case):
    outcome = judge(case, seed=3)
    assert outcome.found is not None
    assert outcome.right_culprit, outcome.found
    assert outcome.false_alarms == []
    assert not case.within_s or outcome.delay_s <= case.within_s


@pytest.mark.parametrize("shape", ["ppo8", "async", "verl", "sft", "single"])
def test_healthy_run_raises_nothing_above_info(shape):
    findings, _, _ = diagnose(shape, "", seed=21)
    assert [finding.title for finding in findings if finding.severity != "info"] == []


def test_cause_lists_its_symptoms():
    findings, _, _ = diagnose("async", "stuck_tool", seed=3)
    stalled = next(finding for finding in findings if finding.rule == "stalled_run")
    explained = {finding.rule for finding in findings if finding.finding_id in stalled.explains}
    assert "stuck_session" in explained
    assert stalled.culprit["tool"] == "sandbox"
    assert stalled.severity == "critical"


def test_straggler_says_what_it_costs():
    findings, _, _ = diagnose("ppo8", "straggler", seed=3)
    straggler = next(finding for finding in findings if finding.rule == "straggler")
    # Rank 3 takes 6.8 s for an update of 4 s, and everyone waits for it.
    assert straggler.impact["seconds_per_step"] == pytest.approx(2.8, abs=0.4)
    assert "steps could take as little as" in straggler.title
    assert straggler.lanes
