"""A slowdown of steps is attributed to the phase that caused it."""

from __future__ import annotations

from benchmarks.diagnosis_script import Script
from rl_insight.diagnosis.run import Settings, replay
from rl_insight.store.run_store import RunStore


def _findings(tmp_path, script, end_s):
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        script.write(store, end_s, goodbye=True)
        with store.reader() as cursor:
            return {one.rule: one for one in replay(cursor, Settings({})).findings}


def _overlapped(script, slow_from, slow_s):
    """Write a trainer that waits for concurrently generated samples: a longer update shortens the wait."""
    trainer, now_s = script.actor("trainer", 0, "box"), 0.0
    for step in range(60):
        update_s = slow_s if step >= slow_from else 0.4
        wait_s = 0.0 if update_s > 2.0 else max(0.0, script.random.uniform(1.1, 2.1) - update_s)
        script.span(trainer, "wait_for_samples", now_s, wait_s, step=step)
        script.span(trainer, "update", now_s + wait_s, update_s, step=step)
        script.span(trainer, "sync_weights", now_s + wait_s + update_s, 0.15, step=step)
        now_s += wait_s + update_s + 0.15
    return now_s


def test_a_phase_is_named_though_a_shorter_wait_makes_up_for_most_of_it(tmp_path):
    script = Script(3)
    found = _findings(tmp_path, script, _overlapped(script, 30, 2.4))["step_regression"]
    assert (found.severity, found.culprit["phase"]) == ("warning", "update")
    assert 30 <= found.first_step <= 32


def test_a_phase_that_makes_no_step_longer_is_not_named(tmp_path):
    script = Script(3)
    assert "step_regression" not in _findings(tmp_path, script, _overlapped(script, 30, 0.9))
