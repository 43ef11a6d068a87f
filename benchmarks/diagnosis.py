"""How well diagnosis detects injected faults, and how few false alarms it raises on healthy runs.

    python -m benchmarks diagnosis

Faults are injected in the middle of synthetic runs of several shapes. A fault counts as found when the expected rule
reports it, not as a symptom of something else; everything else above `info` in a run is a false alarm, except what the
expected finding explains.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.diagnosis_runs import SHAPES, Planted
from benchmarks.diagnosis_script import BEGIN_S, SECOND, Script
from benchmarks.diagnosis_variations import VARIATIONS
from benchmarks.harness import Figure, Options
from rl_insight.diagnosis.run import Report, replay
from rl_insight.store.queries.findings import Finding, top_findings
from rl_insight.store.run_store import RunStore

NAME = "diagnosis"


@dataclass(frozen=True, slots=True)
class Case:
    """A fault and the expected finding."""

    shape: str
    fault: str
    rules: tuple[str, ...]
    culprit: dict[str, Any]
    within_s: float = 0.0
    """Stuck work must be reported this fast; 0 for rules that count steps. A run with only metrics reports once per
    step, so two steps have to pass."""


CASES = (
    Case("ppo8", "straggler", ("straggler",), {"rank": 3, "phase": "update_actor"}),
    Case("ppo64", "straggler", ("straggler",), {"rank": 3, "phase": "update_actor"}),
    Case("ppo64", "slow_host", ("straggler",), {"host": "node-0"}),
    Case("ppo8", "data_imbalance", ("data_imbalance",), {"phase": "update_actor"}),
    Case("ppo8", "slow_reward", ("slow_reward",), {"phase": "reward"}),
    Case("ppo8", "slow_weight_sync", ("slow_weight_sync",), {"phase": "update_weights"}),
    Case("ppo8", "step_regression", ("step_regression",), {"phase": "old_log_prob"}),
    Case("ppo8", "slow_checkpoint", ("slow_checkpoint",), {"phase": "save_checkpoint"}),
    Case("ppo8", "unattributed_time", ("unattributed_time",), {}),
    Case("ppo8", "stalled_run", ("stalled_run",), {}, 30.0),
    Case("ppo64", "killed", ("stalled_run",), {}, 30.0),
    Case("ppo8", "stuck_weight_sync", ("stuck_weight_sync",), {"phase": "update_weights"}, 30.0),
    Case("ppo8", "blocked_reward", ("blocked_reward",), {"phase": "reward"}, 30.0),
    Case("ppo8", "collective_hang", ("collective_hang",), {"rank": 2}, 30.0),
    Case("async", "straggler", ("straggler",), {"rank": 1, "role": "rollout"}),
    Case("async", "slow_tool", ("slow_tool",), {"tool": "search"}),
    Case("async", "tool_errors", ("tool_errors",), {"tool": "sandbox"}),
    Case("async", "slow_scoring", ("slow_reward",), {"phase": "reward"}),
    Case("async", "failing_reward", ("failing_reward",), {"phase": "reward"}),
    Case("async", "silent_zeros", ("failing_reward",), {"phase": "reward"}),
    Case("async", "wasted_samples", ("wasted_samples",), {}),
    Case("async", "stuck_session", ("stuck_session",), {"session_id": "stuck-1", "tool": "search"}, 30.0),
    Case("async", "stuck_tool", ("stalled_run",), {"phase": "toolcall", "tool": "sandbox"}, 30.0),
    Case("async", "dead_engine", ("dead_engine",), {"rank": 2, "role": "rollout"}, 30.0),
    Case("async", "dead_one", ("dead_engine",), {"rank": 2, "role": "rollout"}, 30.0),
    Case("async", "stalled_trainer", ("stalled_run",), {"phase": "update", "role": "trainer"}, 30.0),
    Case("async", "stale_samples", ("stale_samples",), {}),
    Case("async", "telemetry_gap", ("telemetry_gap",), {"rank": 3}),
    *(
        Case("ppo8", name, (name,), {})
        for name in (
            "entropy_collapse", "entropy_explosion", "kl_blowup", "gradient_spike", "non_finite", "length_explosion",
            "length_collapse", "truncation", "dead_groups", "constant_reward", "reward_drop", "clipping_saturated",
            "no_update",
        )
    ),
    *(
        Case("verl", name, (name,), {})
        for name in (
            "slow_reward", "slow_weight_sync", "step_regression", "non_finite", "entropy_collapse", "kl_blowup",
            "truncation", "reward_drop",
        )
    ),
    Case("verl", "engine_mismatch", ("engine_mismatch", "mismatch_after_sync"), {}),
    Case("verl", "stalled_run", ("stalled_run",), {}, 100.0),
    Case("sft", "straggler", ("straggler",), {"rank": 2}),
    Case("sft", "data_starvation", ("data_starvation",), {"phase": "load_data"}),
    Case("sft", "non_finite", ("non_finite",), {}),
    Case("sft", "stalled_run", ("stalled_run",), {"rank": 1, "phase": "forward_backward"}, 30.0),
    Case("driven", "slow_rank", ("straggler",), {"role": "actor", "rank": 5}),
    Case("driven", "slow_node", ("straggler",), {"host": "train-1"}),
    Case("driven", "throttled", ("throttled_gpu",), {"host": "train-1", "gpu": "6"}),
    Case("driven", "hung_replica", ("stalled_run",), {"role": "rollout", "rank": 4}, 90.0),
    Case("driven", "lost_replica", ("dead_engine",), {"role": "rollout", "rank": 2}, 30.0),
    Case("driven", "slow_sync", ("slow_weight_sync",), {"phase": "update_weights"}),
    Case("driven", "reward_collapse", ("reward_drop",), {"metric": "critic/rewards/mean"}),
    Case("driven", "kl_explosion", ("kl_blowup",), {"metric": "actor/kl_loss"}),
    Case("driven", "entropy_collapse", ("entropy_collapse",), {"metric": "actor/entropy"}),
    Case("driven", "gradient_nan", ("non_finite",), {"metric": "actor/grad_norm"}),
    Case("overlapped", "lost_worker", ("dead_engine",), {"role": "generator", "rank": 3}, 30.0),
    Case("overlapped", "slow_worker", ("straggler",), {"role": "generator", "rank": 2, "phase": "generate"}),
    Case("overlapped", "slow_data", ("data_starvation",), {"phase": "get_batch"}),
    Case("overlapped", "slow_tool", ("slow_tool",), {"tool": "search"}),
    Case("overlapped", "stale", ("stale_samples",), {}),
    Case("engines", "engine_queue", ("engine_queue",), {"engine": "10.0.0.1:8000"}),
    Case("engines", "engine_stuck", ("stuck_engine",), {"engine": "10.0.0.1:8000"}, 35.0),
    Case("engines", "engine_down", ("dead_engine",), {"engine": "10.0.0.1:8000"}, 30.0),
    Case("engines", "memory_leak", ("memory_leak",), {"host": "head"}),
    Case("resumed", "slow_rank", ("straggler",), {"rank": 6, "phase": "train"}),
    Case("quick", "slow_data", ("data_starvation",), {"phase": "data"}),
    Case("quick", "stall", ("stalled_run",), {"phase": "train_step"}, 30.0),
    Case("quick", "nan", ("non_finite",), {"metric": "train/loss"}),
    Case("slow_steps", "slow_rank", ("straggler",), {"rank": 11, "phase": "optimize"}),
    Case("slow_steps", "slow_node", ("straggler",), {"host": "h1"}),
    Case("tracked", "kl_explosion", ("kl_blowup",), {"metric": "train/kl"}),
    Case("tracked", "reward_collapse", ("constant_reward", "reward_drop"), {"metric": "train/reward"}),
)  # fmt: skip

HEALTHY = (*SHAPES, *VARIATIONS)


@dataclass(slots=True)
class Outcome:
    """The findings about one run."""

    found: Finding | None
    right_culprit: bool
    delay_s: float
    false_alarms: list[Finding]
    hours: float
    within_s: float


def diagnose(shape: str, fault: str, seed: int) -> tuple[list[Finding], float, float]:
    """Write a run and diagnose it; returns the findings, when the fault began and how long the run took, in seconds."""
    report, planted = report_on(shape, fault, seed)
    return report.findings, planted.onset_s, planted.end_s


def report_on(shape: str, fault: str, seed: int) -> tuple[Report, Planted]:
    """Write a run and diagnose it."""
    with (
        tempfile.TemporaryDirectory(prefix="rl-insight-diagnosis-") as folder,
        RunStore(Path(folder) / "run.duckdb", min_free_bytes=0, create=True) as store,
    ):
        planted = (SHAPES | VARIATIONS)[shape](Script(seed), store, fault)
        with store.reader() as cursor:
            return replay(cursor), planted


def judge(case: Case, seed: int) -> Outcome:
    """Diagnose a run with an injected fault."""
    report, planted = report_on(case.shape, case.fault, seed)
    top = top_findings(report.findings)
    found = next((one for one in top if one.rule in case.rules), None)
    right = found is not None and all(found.culprit.get(key) == value for key, value in case.culprit.items())
    opened_ns = 0 if found is None else report.opened_ns[found.finding_id]
    delay_s = 0.0 if found is None else max(0.0, opened_ns / SECOND - BEGIN_S - planted.onset_s)
    alarms = [one for one in top if one.severity != "info" and one.rule not in case.rules]
    return Outcome(found, right, delay_s, alarms, planted.end_s / 3600, case.within_s)


def run(options: Options) -> Iterator[Figure]:
    """Inject every fault, and diagnose healthy runs."""
    seeds = (1,) if options.quick else (1, 2)
    verbose = bool(os.environ.get("RL_INSIGHT_BENCHMARK_VERBOSE"))
    outcomes: list[Outcome] = []
    for case in CASES:
        for seed in seeds:
            outcome = judge(case, seed)
            outcomes.append(outcome)
            if verbose and (outcome.found is None or not outcome.right_culprit or outcome.false_alarms):
                said = "missed" if outcome.found is None else f"{outcome.found.title} {outcome.found.culprit}"
                print(f"{case.shape} {case.fault} seed {seed}: {said}", file=sys.stderr)
                for alarm in outcome.false_alarms:
                    print(f"    also {alarm.severity} {alarm.rule}: {alarm.title}", file=sys.stderr)
    found = [outcome for outcome in outcomes if outcome.found is not None]
    alarms = sum(len(outcome.false_alarms) for outcome in outcomes)
    yield Figure("faults injected", len(outcomes), "")
    yield Figure("recall", len(found) / len(outcomes), "", budget=0.95, at_least=True)
    yield Figure(
        "correct culprit", sum(one.right_culprit for one in found) / max(1, len(found)), "", 0.95, at_least=True
    )
    yield Figure("precision", len(found) / max(1, len(found) + alarms), "", budget=0.9, at_least=True)
    stuck = sorted(one.delay_s for one in found if one.within_s)
    others = sorted(one.delay_s for one in found if not one.within_s)
    yield Figure("stuck work reported after, median", stuck[len(stuck) // 2], "s")
    yield Figure("stuck work reported after, slowest", stuck[-1], "s")
    late = [one for one in found if one.within_s and one.delay_s > one.within_s]
    yield Figure("stuck work reported too late", len(late), "", budget=0.0)
    yield Figure("other faults reported after, median", others[len(others) // 2], "s")
    loud, hours = 0, 0.0
    for shape in HEALTHY:
        for seed in range(10, 11 if options.quick else 12):
            findings, _, end_s = diagnose(shape, "", seed)
            hours += end_s / 3600
            loud += sum(one.severity != "info" for one in findings)
            if verbose:
                for one in findings:
                    print(f"healthy {shape} seed {seed}: {one.severity} {one.rule}: {one.title}", file=sys.stderr)
    yield Figure("healthy hours", hours, "h")
    yield Figure("false alarms per healthy hour", loud / hours, "/h", budget=0.0)
