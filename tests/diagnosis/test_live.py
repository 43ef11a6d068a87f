"""Live diagnosis of a run gives exactly the findings of its file afterward."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.diagnosis_runs import SHAPES
from benchmarks.diagnosis_script import BEGIN_S, SECOND, Script
from rl_insight.diagnosis.run import LiveDiagnosis, replay
from rl_insight.store.run_store import RunStore


def _visible(findings):
    return {(one.finding_id, one.rule, one.status, one.first_step, one.last_step, one.start_ns) for one in findings}


@pytest.mark.parametrize(("shape", "fault"), [("async", "slow_tool"), ("sft", "straggler"), ("verl", "kl_blowup")])
def test_live_and_offline_find_the_same(tmp_path, shape, fault):
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        planted = SHAPES[shape](Script(5), store, fault)
        live = LiveDiagnosis()
        now_ns = int((BEGIN_S + planted.end_s + 60) * SECOND)
        for _ in range(1000):
            with store.reader() as cursor:
                done = live.evaluate(cursor, now_ns, budget_s=0.05)
            if done and live.is_current(now_ns):
                break
        with store.reader() as cursor:
            offline = replay(cursor).findings
    assert offline
    assert _visible(live.engine.run_findings.values()) == _visible(offline)


def test_old_records_are_not_a_stall_while_they_arrive(tmp_path):
    """A run that is sent long after it was recorded must not look stalled between two of its batches."""
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        script = Script(5)
        trainer = script.actor("trainer", 0, "node-0")
        live = LiveDiagnosis()
        for step in range(60):
            script.span(trainer, "update", 2.0 * step, 1.9, step=step)
            if step % 10 == 9:
                script.write(store, 7200.0 + step, goodbye=False)
                with store.reader() as cursor:
                    live.evaluate(cursor, int((BEGIN_S + 7200 + step) * SECOND))
    assert not live.engine.run_findings


@pytest.mark.parametrize(("heartbeat_s", "silent"), [(5.0, ["telemetry_gap"]), (900.0, [])])
def test_a_sender_that_never_promised_heartbeats_may_just_have_ended(tmp_path, heartbeat_s, silent):
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        script = Script(5)
        trainer = script.actor("trainer", 0, "node-0")
        trainer.process = msgspec.structs.replace(trainer.process, heartbeat_s=heartbeat_s)
        live = LiveDiagnosis()
        for step in range(20):
            script.span(trainer, "update", 2.0 * step, 1.9, step=step)
        script.write(store, 40.0, goodbye=False)
        for minutes in (1, 60, 61):
            with store.reader() as cursor:
                live.evaluate(cursor, int((BEGIN_S + 40 + 60 * minutes) * SECOND))
    found = [one.rule for one in live.engine.run_findings.values() if one.rule == "telemetry_gap"]
    assert found == silent
