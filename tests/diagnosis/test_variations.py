"""Real-world variation raises no alarm; faults in it are reported with their culprit."""

from __future__ import annotations

import json

import pytest

from benchmarks.diagnosis import CASES, diagnose, judge
from benchmarks.diagnosis_script import BEGIN_S, SECOND, Script
from benchmarks.diagnosis_variations import VARIATIONS
from rl_insight.diagnosis.run import replay
from rl_insight.schema.stacks import STACKS_EVENT
from rl_insight.store.queries import top_findings
from rl_insight.store.run_store import RunStore

# One or two per shape; the rest run with the long tests.
QUICK = {
    ("driven", "slow_rank"), ("driven", "hung_replica"), ("engines", "engine_stuck"), ("engines", "memory_leak"),
    ("quick", "stall"), ("tracked", "reward_collapse"), ("ppo8", "data_imbalance"),
}  # fmt: skip


@pytest.fixture
def diagnosed(tmp_path):
    """Return a function that writes a run with `plan(script, store)` and returns its findings."""

    def diagnose_plan(plan):
        with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
            plan(Script(3), store)
            with store.reader() as cursor:
                return replay(cursor).findings

    return diagnose_plan


@pytest.mark.parametrize("shape", sorted(VARIATIONS))
def test_healthy_variation_raises_nothing_above_info(shape):
    findings, _, _ = diagnose(shape, "", seed=2)
    assert [finding.title for finding in findings if finding.severity != "info"] == []


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(one, marks=[] if (one.shape, one.fault) in QUICK else pytest.mark.slow)
        for one in CASES
        if one.shape in VARIATIONS or one.shape == "ppo8"
    ],
    ids=lambda case: f"{case.shape}-{case.fault}",
)
def test_fault_among_variations_is_named(case):
    outcome = judge(case, seed=2)
    assert outcome.found is not None
    assert outcome.right_culprit, outcome.found
    assert outcome.false_alarms == []
    assert not case.within_s or outcome.delay_s <= case.within_s


def test_processes_of_a_killed_run_are_not_missed_after_it_was_resumed():
    findings, _, _ = diagnose("resumed", "killed", seed=1)
    told = [(one.rule, one.status) for one in top_findings(findings) if one.severity != "info"]
    assert told == [("stalled_run", "resolved")]


def _stalls(frames):
    """A run that stalls between two states, whose process sends its stacks."""

    def plan(script, store):
        trainer = script.actor("trainer", 0, "node")
        for step in range(40):
            script.span(trainer, "update", 2.0 * step, 1.9, step=step)
        stacks = {"stacks": [{"name": "MainThread", "frames": frames}]}
        trainer.builder.add_event(
            name=STACKS_EVENT, time_ns=int((BEGIN_S + 110.0) * SECOND), attributes=json.dumps(stacks)
        )
        # The hardware is still measured, so that the run is watched to its end.
        script.gauge(trainer, "node_memory_used_bytes", 199.0, 1e9, None, source="psutil", host="node")
        script.write(store, 200.0, goodbye=True)

    return plan


@pytest.mark.parametrize(
    ("frames", "severity"),
    [
        (["recv (socket.py:12)", "fetch (trainer/loop.py:31)"], "warning"),
        (["readline (codecs.py:3)", "cmdloop (/usr/lib/python3.11/cmd.py:126)", "step (trainer/loop.py:3)"], "info"),
        (["interaction (lib/python3.11/pdb.py:4)", "step (trainer/loop.py:3)"], "info"),
    ],
)
def test_stall_with_nothing_open_is_a_warning_unless_stacks_show_a_debugger(diagnosed, frames, severity):
    (found,) = [one for one in diagnosed(_stalls(frames)) if one.rule == "stalled_run"]
    assert found.severity == severity


def test_queue_that_shrinks_is_only_information(diagnosed):
    def plan(script, store):
        target, trainer = script.actor("scrape", 0, ""), script.actor("trainer", 0, "head")
        for tick in range(40):
            labels = {"instance": "10.0.0.1:8000"}
            script.gauge(target, "vllm:num_requests_running", 5.0 * tick, 30.0, None, **labels)
            script.gauge(target, "vllm:num_requests_waiting", 5.0 * tick, 900.0 - 5 * tick, None, **labels)
            script.span(trainer, "gen", 5.0 * tick, 4.9, step=tick)
        script.write(store, 200.0, goodbye=True)

    assert {one.severity for one in diagnosed(plan) if one.rule == "engine_queue"} == {"info"}


def test_gradients_of_a_solved_task_that_return_to_their_old_level_are_not_a_spike(diagnosed):
    def plan(script, store):
        trainer = script.actor("trainer", 0, "node-0")
        for step in range(160):
            usual = 0.2 if step < 40 else 0.0001
            value = 0.02 if step in (140, 141, 143) else usual * script.random.uniform(0.8, 1.2)
            script.span(trainer, "update", 2.0 * step, 1.9, step=step)
            script.gauge(trainer, "grad_norm", 2.0 * step + 1.9, value, step)
        script.write(store, 320.0, goodbye=True)

    assert "gradient_spike" not in {one.rule for one in diagnosed(plan)}


ENGINES = {
    "vllm": ("vllm:num_requests_running", "vllm:generation_tokens_total", "engine", ""),
    "ray": (
        "ray_vllm_num_requests_running",
        "ray_vllm_generation_tokens_total",
        "engine",
        "ray_vllm_generation_tokens",
    ),
    "sglang": ("sglang:num_running_reqs", "sglang:generation_tokens_total", "dp_rank", ""),
}


@pytest.mark.parametrize("kind", ENGINES)
def test_one_of_the_engines_behind_an_address_is_stuck(diagnosed, kind):
    """Each data-parallel engine has its own numbers; those of single priorities are part of the total."""
    running, tokens, label, copy = ENGINES[kind]

    def plan(script, store):
        target, trainer = script.actor("scrape", 0, ""), script.actor("trainer", 0, "head")
        for tick in range(40):
            for engine in ("0", "1"):
                labels = {"instance": "10.0.0.1:8000", label: engine}
                generated = 1000.0 * (tick if engine == "0" else min(tick, 10))
                script.gauge(target, tokens, 5.0 * tick, generated, None, **labels)
                script.gauge(target, running, 5.0 * tick, 30.0, None, **labels)
                if kind == "sglang":
                    script.gauge(target, running, 5.0 * tick + 0.01, 30.0, None, priority="0", **labels)
                    script.gauge(target, running, 5.0 * tick + 0.02, 0.0, None, priority="1", **labels)
                if copy:
                    script.gauge(target, copy, 5.0 * tick + 0.01, float(tick), None, **labels)
            script.span(trainer, "gen", 5.0 * tick, 4.9, step=tick)
        script.write(store, 200.0, goodbye=True)

    culprits = {json.dumps(one.culprit) for one in diagnosed(plan) if one.rule == "stuck_engine"}
    assert culprits == {json.dumps({"engine": "10.0.0.1:8000 engine 1"})}
