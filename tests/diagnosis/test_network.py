"""Slow links and cold caches are reported; a finding about one host explains nothing on another."""

from __future__ import annotations

import json

import pytest

from benchmarks.diagnosis_script import BEGIN_S, SECOND, Script
from rl_insight.diagnosis.run import replay
from rl_insight.store.queries import top_findings
from rl_insight.store.run_store import RunStore

STEPS, ONSET, STEP_S = 60, 30, 10.0


@pytest.fixture
def diagnosed(tmp_path):
    """Return a function that writes a run with `plan(script)` and returns its findings."""

    def diagnose(plan):
        with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
            script = Script(3)
            plan(script)
            script.write(store, STEPS * STEP_S, goodbye=True)
            with store.reader() as cursor:
                return replay(cursor).findings

    return diagnose


def _count(actor, name, moment_s, value, **labels):
    series = actor.builder.add_series(name, "counter", "", json.dumps(labels))
    actor.builder.add_sample(series, time_ns=int((BEGIN_S + moment_s) * SECOND), value=value)


def _hosts(slow_host=None, slow_rank=None, throttled_host=None):
    """Four hosts with two ranks each that send their weights, 2 GB per step and host."""

    def plan(script):
        ranks = [script.actor("trainer", rank, f"n{rank // 2}") for rank in range(8)]
        for step in range(STEPS):
            start = STEP_S * step
            is_bad = step >= ONSET
            for rank, actor in enumerate(ranks):
                host = f"n{rank // 2}"
                sync = 2.5 if is_bad and host == slow_host else 1.0
                update = 5.0 * script.random.uniform(0.98, 1.02) * (1.3 if is_bad and rank == slow_rank else 1.0)
                script.span(actor, "update", start, update, step=step)
                script.span(actor, "sync_weights", start + 6.6, sync, step=step)
                if rank % 2 == 0:
                    for name in ("node_network_sent_bytes", "node_network_received_bytes"):
                        _count(actor, name, start + 9.5, 2e9 * (step + 1), source="psutil", host=host)
                    hot = is_bad and host == throttled_host
                    readings = {"utilization_ratio": 0.99, "sm_clock_hertz": 1e9 if hot else 1.7e9,
                                "temperature_celsius": 92.0 if hot else 60.0}  # fmt: skip
                    for name, value in readings.items():
                        script.gauge(actor, f"gpu_{name}", start + 9.5, value, None, source="nvml", host=host, gpu="0")

    return plan


def _loud(findings):
    return {(one.rule, one.culprit.get("host")) for one in top_findings(findings) if one.severity != "info"}


def test_equal_networks_are_quiet(diagnosed):
    assert _loud(diagnosed(_hosts())) == set()


def test_slow_network_is_named_and_explains_the_slow_host(diagnosed):
    findings = diagnosed(_hosts(slow_host="n2"))
    assert _loud(findings) == {("slow_network", "n2")}
    (found,) = [one for one in findings if one.rule == "slow_network"]
    assert found.culprit["phase"] == "sync_weights"
    assert found.evidence[0]["value"] == pytest.approx(4e9 / 2.5, rel=0.1)


def test_throttled_gpu_does_not_explain_a_straggler_on_another_host(diagnosed):
    findings = diagnosed(_hosts(slow_rank=7, throttled_host="n0"))
    assert _loud(findings) == {("throttled_gpu", "n0"), ("straggler", "n3")}


def _engine(rate, samples=8):
    """An engine whose prefix cache has the hit rate `rate(step)`, for groups of samples."""

    def plan(script):
        trainer, target = script.actor("trainer", 0, "head"), script.actor("scrape", 0, "")
        hits = queries = 0.0
        for step in range(STEPS):
            start = STEP_S * step
            script.span(trainer, "generation", start, 6.0, step=step)
            script.span(trainer, "policy_training", start + 6.0, 3.9, step=step)
            for sample in range(samples):
                script.session(trainer, f"{step}-{sample}", start, start + 5.0, step=step, task=f"task-{step}")
            hits, queries = hits + 1000 * rate(step), queries + 1000
            for name, value in (("hits", hits), ("queries", queries)):
                _count(target, f"vllm:prefix_cache_{name}_total", start + 9.0, value, instance="10.0.0.1:8000")

    return plan


@pytest.mark.parametrize(
    ("rate", "samples", "severities"),
    [
        (lambda _: 0.85, 8, []),
        (lambda step: 0.85 if step < ONSET else 0.1, 8, ["warning"]),
        (lambda _: 0.1, 8, ["info"]),
        (lambda _: 0.1, 1, []),
    ],
)
def test_cold_prefix_cache_is_reported(diagnosed, rate, samples, severities):
    found = [one for one in diagnosed(_engine(rate, samples)) if one.rule == "cold_prefix_cache"]
    assert [one.severity for one in found] == severities
    assert {one.culprit["engine"] for one in found} <= {"10.0.0.1:8000"}
