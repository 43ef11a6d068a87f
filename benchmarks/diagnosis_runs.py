"""Synthetic runs of several shapes, healthy or with one fault that begins in the middle."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.diagnosis_script import Actor, Script
from rl_insight.schema.batch import Loss
from rl_insight.store.run_store import RunStore

STEPS = 70
ONSET = 40
"""The step in which faults begin."""
_TOOLS = ("search", "sandbox")


@dataclass(frozen=True, slots=True)
class Planted:
    """When the injected fault began, and when the run ended."""

    onset_s: float
    end_s: float


def _learning(
    script: Script, actor: Actor, step: int, end_s: float, fault: str, names: dict[str, str], *, label: bool
) -> None:
    """Record the metrics of a healthy run, or of one with a fault."""
    rng = script.random
    bad = fault if step >= ONSET else ""
    since = step - ONSET
    reward = 0.1 + 0.6 * (1 - math.exp(-step / 40)) + rng.gauss(0, 0.015)
    entropy = 1.0 * math.exp(-step / 200) + rng.gauss(0, 0.01)
    length = 400 + 4 * step + rng.gauss(0, 12)
    kl, gradient, loss, truncated = (
        0.004 + 0.0001 * step + rng.gauss(0, 4e-4),
        rng.lognormvariate(-1, 0.3),
        rng.gauss(0.02, 0.01),
        0.02,
    )
    dead, mismatch, staleness = 0.2 + rng.uniform(0, 0.1), 0.003 + rng.uniform(0, 0.001), 1.0 + rng.uniform(0, 0.3)
    clip, rate = 0.01 + rng.uniform(0, 0.01), 1e-6
    if bad == "entropy_collapse":
        entropy, reward = max(0.01, entropy * math.exp(-since / 5)), 0.55 + rng.gauss(0, 0.01)
    if bad == "entropy_explosion":
        entropy, reward = entropy + 0.5 * since, 0.5 - 0.005 * since + rng.gauss(0, 0.01)
    if bad == "kl_blowup":
        kl *= 40 * (1 + since / 3)
    if bad == "gradient_spike":
        gradient *= 40 if since % 2 == 0 or since < 4 else 1
    if bad == "non_finite" and since == 0:
        gradient = math.nan
    if bad == "length_explosion":
        length, reward = length * 3, reward - 0.1
    if bad == "length_collapse":
        length, reward = length * 0.1, reward - 0.1
    if bad == "truncation":
        truncated = 0.4
    if bad == "dead_groups":
        dead = 0.95
    if bad == "constant_reward":
        reward = 0.0
    if bad == "reward_drop":
        reward, kl, rate = reward * 0.4, kl * 5, 1e-5
    if bad == "engine_mismatch":
        mismatch = 0.04
    if bad == "stale_samples":
        staleness = 9.0
    if bad == "clipping_saturated":
        clip = 0.6
    if bad == "no_update":
        gradient = 0.0
    values = {
        "reward": reward, "entropy": entropy, "length": length, "kl": kl, "gradient": gradient, "loss": loss,
        "truncated": truncated, "dead": dead, "mismatch": mismatch, "staleness": staleness, "clip": clip, "rate": rate,
    }  # fmt: skip
    for place, (key, name) in enumerate(names.items()):
        script.gauge(actor, name, end_s + 1e-4 * place, values[key], step if label else None)


TRL = {
    "reward": "reward", "entropy": "entropy", "length": "completions/mean_length", "kl": "kl", "gradient": "grad_norm",
    "loss": "loss", "truncated": "completions/clipped_ratio", "dead": "frac_reward_zero_std", "rate": "learning_rate",
    "clip": "clip_ratio/region_mean",
}  # fmt: skip
VERL = {
    "reward": "critic_rewards_mean", "entropy": "actor_entropy", "length": "response_length_mean",
    "kl": "actor_kl_loss", "gradient": "actor_grad_norm", "loss": "actor_pg_loss", "rate": "actor_lr",
    "truncated": "response_length_clip_ratio", "mismatch": "training_rollout_probs_diff_mean",
    "clip": "actor_pg_clipfrac",
}  # fmt: skip
OWN = {
    "reward": "reward_mean", "entropy": "entropy", "length": "response_length_mean", "kl": "kl", "loss": "loss",
    "gradient": "grad_norm", "staleness": "staleness_mean", "dead": "uniform_group_fraction", "rate": "lr",
}  # fmt: skip


def _pause(script: Script) -> float:
    """Return the pause of a noisy machine: occasionally up to a second."""
    return script.random.uniform(0, 1.0) if script.random.random() < 0.04 else 0.0


def colocated(script: Script, store: RunStore, fault: str, ranks: int) -> Planted:
    """Synchronous PPO: every rank generates, scores, trains; occasional checkpoints and validation."""
    rng = script.random
    actors = [script.actor("actor", rank, f"node-{rank // 8}") for rank in range(ranks)]
    now, onset = 0.0, 0.0
    for step in range(STEPS):
        bad = fault if step >= ONSET else ""
        if step == ONSET:
            onset = now
        warm = 4.0 if step == 0 else 2.0 if step == 1 else 1.0
        lengths = [max(rng.lognormvariate(0, 0.25) for _ in range(8)) for _ in actors]
        plan: list[tuple[str, list[float]]] = [
            ("generate_sequences", [5.0 * warm * length / 1.45 for length in lengths]),
            ("reward", [0.6 * rng.uniform(0.9, 1.1)] * ranks),
            ("old_log_prob", [1.5 * warm * rng.uniform(0.97, 1.03) for _ in actors]),
            ("update_actor", [4.0 * warm * rng.uniform(0.97, 1.03) for _ in actors]),
            ("update_weights", [0.8 * rng.uniform(0.9, 1.1)] * ranks),
        ]
        times = dict(plan)
        if bad == "straggler":
            times["update_actor"][3] *= 1.7
        if bad == "data_imbalance":
            times["update_actor"][:] = [4.0 * rng.lognormvariate(0, 0.4) for _ in actors]
        if bad == "slow_reward":
            times["reward"][:] = [8.0] * ranks
        if bad == "slow_weight_sync":
            times["update_weights"][:] = [9.0] * ranks
        if bad == "step_regression":
            times["old_log_prob"][:] = [6.0 * rng.uniform(0.97, 1.03) for _ in actors]
        if bad == "slow_host":
            for rank in range(8):
                times["generate_sequences"][rank] *= 2.0
                times["update_actor"][rank] *= 2.0
        if step % 20 == 19:
            plan.append(("save_checkpoint", [6.0 * (12 if bad == "slow_checkpoint" else 1)] * ranks))
        elif bad == "slow_checkpoint" and step % 3 == 0:
            plan.append(("save_checkpoint", [12.0] * ranks))
        if step % 10 == 9:
            plan.append(("validate", [9.0] * ranks))
        stuck = (bad == "stuck_weight_sync" and "update_weights") or (bad == "blocked_reward" and "reward")
        stuck = stuck or (bad == "collective_hang" and "update_actor") or ""
        at = now
        for name, seconds in plan:
            if stuck == name:
                for rank, actor in enumerate(actors):
                    if bad != "collective_hang" or rank != 2:
                        script.span(actor, name, at + 0.001 * rank, None, step=step, lane=f"rank_{rank}")
                    else:
                        script.span(actor, "load_batch", at, None, step=step, lane=f"rank_{rank}")
                script.write(store, at + 420.0, goodbye=False)
                return Planted(at, at + 420.0)
            for rank, actor in enumerate(actors):
                script.span(actor, name, at, seconds[rank], step=step, lane=f"rank_{rank}")
            at += max(seconds) + 0.02 + _pause(script)
        if bad == "unattributed_time":
            at += 6.0
        if bad == "stalled_run":
            script.write(store, at + 900.0, goodbye=False)
            return Planted(at, at + 900.0)
        if bad == "killed":
            for actor in actors:
                actor.died_s = at
            script.write(store, at, goodbye=False)
            return Planted(at, at + 600.0)
        _learning(script, actors[0], step, at - 0.01, fault, TRL, label=True)
        now = at
    if fault == "":
        now += 40.0  # paused in a debugger before it ends
    script.write(store, now + 5.0, goodbye=True)
    return Planted(onset, now + 5.0)


def asynchronous(script: Script, store: RunStore, fault: str, rollouts: int = 6) -> Planted:
    """Asynchronous GRPO with tools: one trainer, several rollout workers with slots."""
    rng = script.random
    trainer = script.actor("trainer", 0, "node-0")
    workers = [script.actor("rollout", rank, f"node-{1 + rank // 3}") for rank in range(rollouts)]
    durations = [8.0 * rng.uniform(0.93, 1.07) * (3 if step == 0 else 1.4 if step == 1 else 1) for step in range(STEPS)]
    slower = {"slow_tool": 1.25, "straggler": 1.15, "rollout_slow": 1.0}
    durations = [seconds * (slower.get(fault, 1.0) if step >= ONSET else 1.0) for step, seconds in enumerate(durations)]
    starts = [sum(durations[:step]) for step in range(STEPS + 1)]
    onset, end = starts[ONSET], starts[-1]
    stops = {"stuck_session": 999.0, "stuck_tool": 420.0, "dead_engine": 420.0, "dead_one": 0.0}
    hang = fault in {"stuck_tool", "dead_engine", "stalled_trainer"}
    if fault in {"dead_engine", "dead_one"}:
        workers[2].died_s = onset + 2.0
    if hang:
        end = onset
    for step in range(STEPS):
        if hang and step >= ONSET:
            break
        _train(script, trainer, step, starts[step], durations[step] + _pause(script) * 0.3, fault)
    for rank, worker in enumerate(workers):
        for slot in range(4):
            _roll_out(script, worker, rank, slot, starts, onset, end, fault)
    if hang:
        lane = "trainer"
        if fault == "stalled_trainer":
            script.span(trainer, "update", onset + 0.1, None, step=ONSET, lane=lane)
        else:
            script.span(trainer, "wait_for_samples", onset + 0.1, None, step=ONSET, lane=lane)
        if fault == "stuck_tool":
            for rank, worker in enumerate(workers[:3]):
                session = f"stuck-{rank}"
                script.span(worker, "toolcall", onset, None, segment="phase", lane=f"rollout_{rank}/slot_0",
                            step=ONSET, session=session, attributes={"tool": "sandbox"})  # fmt: skip
                script.session(worker, session, onset - 1, None, step=ONSET, task="task-stuck")
        end = onset + stops.get(fault, 420.0)
        script.write(store, end, goodbye=False)
        return Planted(onset, end)
    if fault == "stuck_session":
        script.span(workers[1], "toolcall", onset, None, segment="phase", lane="rollout_1/slot_9", step=ONSET,
                    session="stuck-1", attributes={"tool": "search"})  # fmt: skip
        script.session(workers[1], "stuck-1", onset - 1, None, step=ONSET, task="task-stuck")
    if fault == "telemetry_gap":
        workers[3].losses = [Loss(kind="spans", reason="buffer_full", count=500)]
    script.write(store, end + 5.0, goodbye=True)
    return Planted(onset, end)


def _train(script: Script, trainer: Actor, step: int, start: float, seconds: float, fault: str) -> None:
    parts = {"wait_for_samples": 0.35, "compute_advantages": 0.05, "update": 0.45, "sync_weights": 0.12}
    at = start
    for name, share in parts.items():
        taken = seconds * share * script.random.uniform(0.97, 1.03)
        script.span(trainer, name, at, taken, step=step, lane="trainer")
        at += taken
    _learning(script, trainer, step, start + 0.98 * seconds, fault, OWN, label=True)


def _roll_out(
    script: Script, worker: Actor, rank: int, slot: int, starts: list[float], onset: float, end: float, fault: str
) -> None:
    rng = script.random
    lane = f"rollout_{rank}/slot_{slot}"
    at, number = 1.0 + 0.3 * slot, 0
    while at < end - 1:
        step = max(place for place, start in enumerate(starts) if start <= at)
        bad = fault if at >= onset else ""
        began, session = at, f"s-{rank}-{slot}-{number}"
        number += 1
        slow = 2.5 if bad == "straggler" and rank == 1 else 1.0
        status = "accepted"
        generated = 0.0
        tokens_total = 0
        for _turn in range(rng.choice([1, 2, 2, 3])):
            tokens = int(rng.lognormvariate(4.3, 0.4))
            taken = tokens * 0.012 * slow
            script.span(worker, "generate", at, taken, segment="phase", lane=lane, step=step, session=session,
                        attributes={"tokens": tokens})  # fmt: skip
            at += taken
            generated += taken
            tokens_total += tokens
            tool = _TOOLS[number % 2]
            calls = rng.lognormvariate(-1.6, 0.4) if rng.random() > 0.04 else rng.uniform(0.8, 1.6)
            if bad == "slow_tool" and tool == "search":
                calls = 8 * calls + 0.6
            failed = rng.random() < (0.3 if bad == "tool_errors" and tool == "sandbox" else 0.01)
            script.span(worker, "toolcall", at, calls, segment="phase", lane=lane, step=step, session=session,
                        error="ToolTimeout" if failed else None, attributes={"tool": tool})  # fmt: skip
            at += calls
        scoring = 2.5 if bad == "slow_scoring" else rng.uniform(0.02, 0.05)
        failing = bad == "failing_reward" and rng.random() < 0.3
        script.span(worker, "reward", at, scoring, segment="phase", lane=lane, step=step, session=session,
                    error="HTTPError" if failing else None)  # fmt: skip
        at += scoring
        right = rng.random() < min(0.8, 0.2 + 0.01 * step)
        reward = 0.0 if bad == "silent_zeros" and rng.random() < 0.6 else float(right)
        if bad == "wasted_samples" and rng.random() < 0.4:
            status = "dropped"
        script.session(worker, session, began, at, step=step, task=f"task-{number % 50}", status=status, reward=reward,
                       tokens=tokens_total, model_version=str(step))  # fmt: skip
        idle = rng.uniform(0.05, 0.4)
        script.span(worker, "idle", at, idle, lane=lane, step=step)
        at += idle


def metrics_only(script: Script, store: RunStore, fault: str) -> Planted:
    """Metrics only, as from verl's logger: gauges without steps, `_` for `/`; no spans."""
    rng = script.random
    driver = script.actor("", None, "node-0")
    now, onset = 0.0, 0.0
    for step in range(1, STEPS + 30):
        if step == ONSET:
            onset = now
        bad = fault if step >= ONSET else ""
        seconds = {"gen": 12 * rng.uniform(0.9, 1.1), "reward": 1.0, "update_actor": 9.0 * rng.uniform(0.97, 1.03),
                   "update_weights": 1.2, "old_log_prob": 3.0}  # fmt: skip
        if step == 1:
            seconds["gen"] *= 4
        if bad == "slow_reward":
            seconds["reward"] = 12.0
        if bad == "slow_weight_sync":
            seconds["update_weights"] = 15.0
        if bad == "step_regression":
            seconds["update_actor"] *= 2
        if step % 10 == 0:
            seconds["testing"] = 15.0
        if bad == "stalled_run":
            script.write(store, now + 900.0, goodbye=False)
            return Planted(now, now + 900.0)
        now += sum(seconds.values()) + 0.5 + _pause(script)
        for name, value in seconds.items():
            script.gauge(driver, f"timing_s_{name}", now, value)
        script.gauge(driver, "timing_s_step", now, sum(seconds.values()))
        _learning(script, driver, step, now, fault, VERL, label=False)
        if step % 10 == 0:
            script.gauge(driver, "val_core_math_acc_mean", now, 0.3 + 0.001 * step)
        script.gauge(driver, "training_global_step", now + 0.01, step)
    script.write(store, now + 2.0, goodbye=True)
    return Planted(onset, now)


def supervised(script: Script, store: RunStore, fault: str) -> Planted:
    """Fine-tuning without rollout: four ranks, short steps; resumed once."""
    rng = script.random
    onset, now = 0.0, 0.0
    for generation, (first, last) in enumerate(((0, 100), (90, 260))):
        actors = [script.actor("trainer", rank, "node-0", started_s=now, number=f"-{generation}") for rank in range(4)]
        now += 8.0
        for step in range(first, last):
            bad = fault if step >= 150 else ""
            if step == 150:
                onset = now
            warm = 6.0 if step == first else 1.0
            load = 0.05 if bad != "data_starvation" else 1.2
            train = [
                0.9 * warm * rng.uniform(0.97, 1.03) * (2.0 if bad == "straggler" and rank == 2 else 1.0)
                for rank in range(4)
            ]
            for rank, actor in enumerate(actors):
                script.span(actor, "load_data", now, load, step=step)
                script.span(actor, "forward_backward", now + load, train[rank], step=step)
                script.span(actor, "optimizer_step", now + load + max(train), 0.1, step=step)
            now += load + max(train) + 0.1 + _pause(script)
            if step % 50 == 49:
                for actor in actors:
                    script.span(actor, "save_checkpoint", now, 5.0, step=step)
                now += 5.0
            gradient = math.inf if bad == "non_finite" and step == 150 else rng.lognormvariate(0, 0.3)
            script.gauge(actors[0], "train/loss", now, 2 * math.exp(-step / 100) + rng.gauss(0, 0.02), step)
            script.gauge(actors[0], "train/grad_norm", now, gradient, step)
            script.gauge(actors[0], "train/learning_rate", now, 1e-5 * (1 - step / 300), step)
            if bad == "stalled_run":
                script.span(actors[1], "forward_backward", now, None, step=step + 1)
                script.write(store, now + 300.0, goodbye=False)
                return Planted(now, now + 300.0)
        for actor in actors:
            actor.ended_s = now + 1.0
        now += 30.0
    script.write(store, now, goodbye=True)
    return Planted(onset, now)


def single(script: Script, store: RunStore, fault: str) -> Planted:
    """One process without steps: a lightly instrumented script."""
    del fault
    rng = script.random
    actor = script.actor("", None, "laptop")
    now = 0.0
    for _ in range(200):
        taken = rng.lognormvariate(0, 0.6)
        script.span(actor, "evaluate", now, taken, segment="duration")
        now += taken + rng.uniform(0, 2)
        script.gauge(actor, "score", now, rng.random())
    script.write(store, now, goodbye=True)
    return Planted(0.0, now)


Shape = Callable[[Script, RunStore, str], Planted]

SHAPES: dict[str, Shape] = {
    "async": asynchronous,
    "ppo8": lambda script, store, fault: colocated(script, store, fault, 8),
    "ppo64": lambda script, store, fault: colocated(script, store, fault, 64),
    "verl": metrics_only,
    "sft": supervised,
    "single": single,
}
"""Functions that write a run of each shape, by name."""
