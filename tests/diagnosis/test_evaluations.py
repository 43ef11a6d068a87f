"""Rules that compare: jumps at a weight sync, held-out scores, noise, and versions of the engine."""

from __future__ import annotations

import random

import pytest

from benchmarks.diagnosis_script import Script
from rl_insight.diagnosis.run import replay
from rl_insight.store.run_store import RunStore

STEPS = 80


@pytest.fixture
def findings(tmp_path):
    """Return a function that diagnoses a run whose metrics are functions of the step: severities by rule."""

    made = []

    def diagnose(version=None, **metrics):
        made.append(metrics)
        with RunStore(tmp_path / f"run-{len(made)}.duckdb", min_free_bytes=0, create=True) as store:
            script = Script(1)
            trainer = script.actor("trainer", 0, "node")
            for step in range(STEPS):
                start = 10.0 * step
                script.span(trainer, "update", start, 8.0, step=step)
                script.span(trainer, "sync_weights", start + 8.1, 0.5, step=step)
                for name, value in metrics.items():
                    if (told := value(step)) is not None:
                        script.gauge(trainer, name.replace("__", "/"), start + 9.0, told, step)
                if version is not None:
                    script.session(trainer, f"s{step}", start, start + 7.0, step=step, model_version=version(step))
            script.write(store, 10.0 * STEPS, goodbye=True)
            with store.reader() as cursor:
                return {one.rule: one.severity for one in replay(cursor).findings}

    return diagnose


def test_a_jump_of_the_mismatch_is_reported_and_explains_the_mismatch(findings):
    found = findings(training__rollout_probs_diff_mean=lambda step: 0.003 if step < 40 else 0.05)
    assert found["mismatch_after_sync"] == "critical"


def test_a_steady_mismatch_is_not_a_jump(findings):
    noise = random.Random(1)
    found = findings(training__rollout_probs_diff_mean=lambda step: 0.003 * noise.uniform(0.5, 2.0))
    assert "mismatch_after_sync" not in found


def _score(step, after):
    return None if step % 8 else (0.4 + 0.004 * step if step < 40 else after(step))


def test_falling_evaluations_under_a_rising_reward_are_reported(findings):
    found = findings(
        reward=lambda step: 0.2 + 0.008 * step, eval__score=lambda step: _score(step, lambda s: 0.9 - 0.01 * s)
    )
    assert found["reward_hacking"] == "warning"


def test_evaluations_that_vary_are_not_reported(findings):
    noise = random.Random(2)
    found = findings(
        reward=lambda step: 0.2 + 0.008 * step,
        eval__score=lambda step: _score(step, lambda _: 0.55 + noise.gauss(0, 0.05)),
    )
    assert "reward_hacking" not in found


@pytest.mark.parametrize("seed", range(6))
def test_the_best_of_many_noisy_evaluations_is_not_a_peak(findings, seed):
    """Eight tasks that are scored at random at every step, while the reward rises."""
    noise = random.Random(seed)
    found = findings(
        reward=lambda step: 0.2 + 0.008 * step,
        eval__score=lambda _: sum(noise.random() for _ in range(8)) / 8,
    )
    assert "reward_hacking" not in found


def test_a_reward_without_a_trend_is_only_information(findings):
    noise = random.Random(3)
    assert findings(reward=lambda _: noise.choice([0.05, 0.1, 0.9]))["noisy_reward"] == "info"
    assert "noisy_reward" not in findings(reward=lambda step: 0.1 + 0.01 * step)


def test_an_engine_that_keeps_its_version_is_reported(findings):
    assert findings(version=lambda step: str(min(step, 40)))["stale_engine_weights"] == "critical"


@pytest.mark.parametrize("version", [lambda step: str(step // 2), lambda _: "7", lambda _: "base"])
def test_versions_that_advance_or_mean_nothing_are_not(findings, version):
    assert "stale_engine_weights" not in findings(version=version)
