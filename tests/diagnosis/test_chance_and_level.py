"""No finding for what looks like a fault by chance, or only because everything else has become small."""

from __future__ import annotations

import pytest

from benchmarks.diagnosis_script import Script
from rl_insight.diagnosis.run import Settings, replay
from rl_insight.store.run_store import RunStore

GIB = 2.0**30


@pytest.fixture
def script():
    return Script(2)


@pytest.fixture
def diagnosed(tmp_path, script):
    def diagnose(end_s, *, goodbye=True, **values):
        with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
            script.write(store, end_s, goodbye=goodbye)
            with store.reader() as cursor:
                findings = replay(cursor, Settings(values)).findings
        (tmp_path / "run.duckdb").unlink()
        return {one.rule: one for one in findings if one.severity != "info"}

    return diagnose


def _failing_calls(script, fails, steps=70):
    trainer, worker = script.actor("trainer", 0, "box"), script.actor("rollout", 0, "box")
    for step in range(steps):
        script.span(trainer, "update", 4.0 * step, 3.9, step=step)
        for call in range(20):
            failed = "Overloaded" if fails(step, call) else None
            script.span(worker, "toolcall", 4.0 * step + 0.05 * call, 0.04, segment="phase", step=step, error=failed,
                        attributes={"tool": "calculator"})  # fmt: skip


@pytest.mark.parametrize(("chance", "expected"), [(1e-5, False), (1.0, True)])
def test_seven_errors_among_a_hundred_calls_may_be_chance(script, diagnosed, chance, expected):
    _failing_calls(script, lambda step, call: step == 50 and call < 7)
    assert ("tool_errors" in diagnosed(281.0, tool_errors={"chance": chance})) is expected


def test_a_tool_that_fails_more_often_than_before_is_named(script, diagnosed):
    _failing_calls(script, lambda step, call: step > 50 and call % 5 == 0)
    assert diagnosed(281.0)["tool_errors"].culprit["tool"] == "calculator"


@pytest.mark.parametrize(("level", "expected"), [(0.005, False), (2.0, True)])
def test_gradients_are_compared_with_what_they_were_while_the_run_learned(script, diagnosed, level, expected):
    trainer = script.actor("trainer", 0, "box")
    for step in range(100):
        usual = 0.1 if step < 25 else 1e-5
        script.gauge(trainer, "grad_norm", 5.0 * step, level if step > 90 else usual, step)
    assert ("gradient_spike" in diagnosed(501.0)) is expected


def test_a_leak_names_the_process_that_grows(script, diagnosed):
    workers = [script.actor("rollout", rank, "box") for rank in range(2)]
    for tick in range(160):
        at, grown = 15.0 * tick, 0.5 * GIB * tick
        labels = {"source": "psutil", "host": "box"}
        script.gauge(workers[0], "node_memory_used_bytes", at, 100 * GIB + grown, None, **labels)
        script.gauge(workers[0], "node_memory_total_bytes", at, 256 * GIB, None, **labels)
        for rank, worker in enumerate(workers):
            held = 20 * GIB + (0.9 * grown if rank == 1 else 0.0)
            script.gauge(worker, "process_resident_memory_bytes", at, held, None, **labels)
    found = diagnosed(2401.0)["memory_leak"]
    assert (found.culprit["host"], found.culprit["role"], found.culprit["rank"]) == ("box", "rollout", 1)
    assert "rollout 1 grew by" in found.title


def test_the_first_value_that_was_not_a_number_stays_named(script, diagnosed):
    trainer = script.actor("trainer", 0, "box")
    for step in range(40):
        script.gauge(trainer, "loss", 5.0 * step, float("nan") if step >= 22 else 0.1, step)
        script.gauge(trainer, "kl", 5.0 * step + 0.01, float("nan") if step >= 20 else 0.1, step)
    assert diagnosed(201.0)["non_finite"].title == "kl is not a number at step 20"


def test_a_helper_that_is_killed_after_training_is_not_a_stall(script, diagnosed):
    trainer, tool = script.actor("trainer", 0, "box"), script.actor("tool", 0, "box")
    for step in range(30):
        script.span(trainer, "update", 2.0 * step, 1.9, step=step)
        script.span(tool, "evaluate", 2.0 * step, 0.5)
    trainer.ended_s, tool.died_s = 60.0, 60.0
    assert diagnosed(60.0, goodbye=False) == {}


def test_a_tool_of_which_some_calls_were_always_slow_is_judged_by_its_median(script, diagnosed):
    trainer, worker = script.actor("trainer", 0, "box"), script.actor("rollout", 0, "box")
    for step in range(60):
        script.span(trainer, "update", 4.0 * step, 3.9, step=step)
        for call in range(20):
            seconds = 1.2 if call % 10 == 0 else 0.08
            script.span(worker, "toolcall", 4.0 * step + 0.05 * call, seconds + (1.5 if step > 45 else 0.0), step=step,
                        segment="phase", attributes={"tool": "calculator"})  # fmt: skip
    assert "median 1.58 s instead of 80.0 ms" in diagnosed(241.0)["slow_tool"].title
