"""Runs with real-world variation: long warm-ups, heavy tails, curricula, elastic workers, gaps, skewed clocks.

Each shape is healthy without a fault. Faults begin in the middle and last to the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from benchmarks.diagnosis_driven import driven
from benchmarks.diagnosis_runs import Planted
from benchmarks.diagnosis_script import Actor, Script
from rl_insight.store.run_store import RunStore

GIB = 2.0**30


def overlapped(script: Script, store: RunStore, fault: str, *, workers: int = 12) -> Planted:
    """Fully asynchronous: rollouts never stop, the trainer never waits; responses double halfway, workers join late."""
    rng = script.random
    trainer = script.actor("learner", 0, "head")
    steps, onset_step = 140, 80
    starts = [0.0]
    for step in range(steps):
        grown = 1.0 + (0.7 if step >= 60 else 0.0)
        starts.append(starts[-1] + 6.0 * grown * rng.uniform(0.95, 1.05) * (4 if step == 0 else 1))
    onset, end = starts[onset_step], starts[-1]
    rollouts = []
    for rank in range(workers):
        began = 0.0 if rank < workers - 3 else starts[30 + 5 * rank % 20]
        rollouts.append((script.actor("generator", rank, f"gpu-{rank // 4}", started_s=began), began))
    if fault == "lost_worker":
        rollouts[3][0].died_s = onset + 3.0
    if not fault:
        rollouts[1][0].ended_s = starts[100]  # scaled down
    for step in range(steps):
        bad = fault if step >= onset_step else ""
        start, length = starts[step], starts[step + 1] - starts[step]
        load = 0.02 * length
        if bad == "slow_data":
            load = 0.3 * length
        script.span(trainer, "get_batch", start, load, step=step)
        with_sync = 0.06 * length
        update = length - load - with_sync - 0.02
        script.span(trainer, "train", start + load, update, step=step)
        for part in range(4):
            script.span(trainer, "forward_backward", start + load + update * part / 4, update / 4.2, step=step,
                        segment="state_nested")  # fmt: skip
        script.span(trainer, "publish_weights", start + load + update, with_sync, step=step)
        length_mean = (700 if step < 60 else 1400) + rng.gauss(0, 30)
        script.gauge(trainer, "rollout/response_len/mean", start + length - 0.01, length_mean, step)
        script.gauge(
            trainer,
            "rollout/raw_reward",
            start + length - 0.01,
            min(1.0, 0.1 + 0.008 * step) + rng.gauss(0, 0.02),
            step,
        )
        script.gauge(trainer, "train/entropy_loss", start + length - 0.01, 0.5 * 0.996**step + rng.gauss(0, 0.01), step)
        stale = 1.2 + rng.uniform(0, 0.6) + (0.9 * (step - onset_step) if bad == "stale" else 0.0)
        script.gauge(trainer, "staleness_mean", start + length - 0.01, stale, step)
    for actor, began in rollouts:
        for slot in range(3):
            _sample(script, actor, f"slot_{slot}", began + 0.4 * slot + 1.0, starts, onset, fault)
    script.write(store, end + 2.0, goodbye=True)
    return Planted(onset, end)


def _sample(script: Script, actor: Actor, lane: str, at: float, starts: list[float], onset: float, fault: str) -> None:
    """Run sessions back to back on a lane: generation with a heavy tail, then a tool call."""
    rng, number = script.random, 0
    is_slow = fault == "slow_worker" and actor.process.rank == 2
    while at < (actor.ended_s or starts[-1]) - 3.0:
        number += 1
        step = max(place for place, start in enumerate(starts) if start <= at)
        bad = fault if at >= onset else ""
        begin, session = at, f"{actor.process.rank}-{lane}-{number}"
        tokens = int(min(6000, rng.lognormvariate(5.6 if step < 60 else 6.3, 1.0)))
        tool = ("python", "search")[number % 2]
        phases = (
            (
                "generate",
                tokens * 0.006 * rng.uniform(0.95, 1.05) * (1.6 if bad and is_slow else 1.0),
                {"tokens": tokens},
            ),
            (
                "toolcall",
                rng.lognormvariate(-1.5, 0.7) * (12 if bad == "slow_tool" and number % 2 else 1),
                {"tool": tool},
            ),
        )
        for name, taken, given in phases:
            script.span(
                actor, name, at, taken, segment="phase", lane=lane, session=session, step=step, attributes=given
            )
            at += taken
        reward, version = float(rng.random() < 0.4), str(max(0, step - 1))
        script.session(actor, session, begin, at, step=step, task=f"t{number % 80}", reward=reward, tokens=tokens,
                       model_version=version)  # fmt: skip
        at += rng.uniform(0.01, 0.1)


def engines(script: Script, store: RunStore, fault: str) -> Planted:
    """A trainer, host memory, and two scraped engines that provide only metrics."""
    rng = script.random
    trainer = script.actor("trainer", 0, "head")
    targets = [script.actor("scrape", place, "") for place in range(2)]
    steps, onset_step, seconds = 110, 60, 20.0
    onset, end = onset_step * seconds, steps * seconds
    for step in range(steps):
        at = step * seconds
        script.span(trainer, "wait_for_batch", at, 6.0 * rng.uniform(0.8, 1.2), step=step)
        script.span(trainer, "policy_train", at + 8.0, 11.0 * rng.uniform(0.95, 1.05), step=step)
        script.gauge(trainer, "reward", at + 19.5, 0.3 + 0.002 * step + rng.gauss(0, 0.02), step)
    made = [0.0, 0.0]
    for tick in range(int(end / 5)):
        at = 5.0 * tick
        bad = fault if at >= onset else ""
        for place, target in enumerate(targets):
            where = {"instance": f"10.0.0.{place}:8000"}
            is_bad = bad and place == 1
            running, waiting = 30 + rng.randint(-6, 6), rng.randint(0, 4)
            if at % 20 > 15:
                running, waiting = 0, 0
            if is_bad and bad == "engine_queue":
                running, waiting = 32, int(60 + (at - onset) / 2)
            if is_bad and bad == "engine_stuck":
                running = 25
            if not (is_bad and bad in {"engine_stuck", "engine_down"}):
                made[place] += running * 200.0
            is_up = not (is_bad and bad == "engine_down")
            script.gauge(target, "up", at, float(is_up), None, **where)
            if is_up:
                for name, value in (("vllm:num_requests_running", running), ("vllm:num_requests_waiting", waiting),
                                    ("vllm:kv_cache_usage_perc", rng.uniform(0.4, 0.8))):  # fmt: skip
                    script.gauge(target, name, at, float(value), None, **where)
                series = target.builder.add_series(
                    "vllm:generation_tokens_total", "counter", "", f'{{"instance":"{where["instance"]}"}}'
                )
                target.builder.add_sample(
                    series, time_ns=int((1_760_000_000.0 + at) * 1e9), value=made[place], step=None
                )
        if tick % 3 == 0:
            labels = {"source": "psutil", "host": "head"}
            used = 200 * GIB + rng.uniform(0, 6) * GIB
            if bad == "memory_leak":
                used += 0.25 * GIB * (at - onset)
            script.gauge(trainer, "node_memory_used_bytes", at, min(used, 505 * GIB), None, **labels)
            script.gauge(trainer, "node_memory_total_bytes", at, 512 * GIB, None, **labels)
    script.write(store, end + 1.0, goodbye=True)
    return Planted(onset, end)


def resumed(script: Script, store: RunStore, fault: str) -> Planted:
    """Killed without a clean exit, restarted ten minutes later from an earlier step, with new process ids."""
    rng = script.random
    now = 0.0
    for generation, (first, last) in enumerate(((0, 50), (40, 120))):
        actors = [
            script.actor("worker", rank, f"n{rank // 4}", started_s=now, number=f"-{generation}") for rank in range(8)
        ]
        now += 25.0
        for step in range(first, last):
            slow = 4.0 if step == first else 1.0
            compute = [3.0 * slow * rng.uniform(0.95, 1.05) for _ in actors]
            if fault == "slow_rank" and generation == 1 and step >= 80:
                compute[6] *= 1.6
            for rank, actor in enumerate(actors):
                script.span(actor, "rollout", now, 4.0 * slow * rng.uniform(0.7, 1.0), step=step)
                script.span(actor, "train", now + 4.1 * slow, compute[rank], step=step)
            now += 4.2 * slow + max(compute)
            script.gauge(actors[0], "loss", now, rng.gauss(0.0, 0.02), step)
            script.gauge(actors[0], "reward", now, -1.0 + 0.01 * step + rng.gauss(0, 0.05), step)
            if generation == 1 and step == 80:
                onset = now
        if generation == 0:
            for actor in actors:
                if fault == "killed":
                    actor.died_s = now
                else:
                    actor.ended_s = now
            now += 600.0
    script.write(store, now + 1.0, goodbye=True)
    return Planted(onset, now)


def quick(script: Script, store: RunStore, fault: str) -> Planted:
    """Supervised fine-tuning in one process: steps of 0.2 s, warm-up and cosine decay, evaluation every 200 steps."""
    rng = script.random
    trainer = script.actor("", None, "laptop")
    now, onset, steps = 0.0, 0.0, 1600
    for step in range(steps):
        bad = fault if step >= 900 else ""
        onset = now if step == 900 else onset
        load = rng.uniform(0.01, 0.02) + (0.4 if bad == "slow_data" else 0.0)
        compute = 0.18 * rng.uniform(0.9, 1.1) * (8 if step < 2 else 1)
        if rng.random() < 0.01:
            compute += rng.uniform(0.2, 1.0)
        script.span(trainer, "data", now, load, step=step)
        script.span(trainer, "train_step", now + load, compute, step=step)
        if bad == "stall":
            script.span(trainer, "train_step", now + load + compute, None, step=step + 1)
            script.write(store, now + 300.0, goodbye=False)
            return Planted(now, now + 300.0)
        now += load + compute + 0.005
        rate = 2e-5 * min(1.0, step / 100) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        loss = 1.5 + 2.0 * math.exp(-step / 300) + rng.gauss(0, 0.25)
        script.gauge(trainer, "train/loss", now, math.nan if bad == "nan" and step == 900 else loss, step)
        script.gauge(trainer, "train/grad_norm", now, rng.lognormvariate(0, 0.6), step)
        script.gauge(trainer, "train/learning_rate", now, rate, step)
        if step % 200 == 199:
            script.span(trainer, "evaluate", now, 15.0, step=step)
            now += 15.0
            script.gauge(trainer, "eval/loss", now, loss + 0.1, step)
        if step % 500 == 499:
            script.span(trainer, "save_checkpoint", now, 9.0, step=step)
            now += 9.0
    script.write(store, now + 1.0, goodbye=True)
    return Planted(onset, now)


def slow_steps(script: Script, store: RunStore, fault: str) -> Planted:
    """Eight-minute steps on sixteen ranks, with long and uneven sampling."""
    rng, now, onset = script.random, 0.0, 0.0
    ranks = [script.actor("policy", rank, f"h{rank // 8}") for rank in range(16)]
    for step in range(28):
        bad = fault if step >= 16 else ""
        onset = now if step == 16 else onset
        sample = [240 * rng.uniform(0.6, 1.0) for _ in ranks]
        train = [
            170 * rng.uniform(0.98, 1.02) * (1.6 if bad == "slow_rank" and rank == 11 else 1.0) for rank in range(16)
        ]
        if bad == "slow_node":
            train[8:] = [one * 1.5 for one in train[8:]]
        if bad == "hang":
            for rank, actor in enumerate(ranks):
                script.span(actor, "sampling", now, None if rank == 9 else sample[rank], step=step)
            script.write(store, now + 7200.0, goodbye=False)
            return Planted(now + 240, now + 7200.0)
        for rank, actor in enumerate(ranks):
            script.span(actor, "sampling", now, sample[rank], step=step)
            script.span(actor, "optimize", now + max(sample), train[rank], step=step)
        now += max(sample) + max(train) + 40.0
        script.gauge(ranks[0], "reward", now - 1, 0.1 + 0.01 * step + rng.gauss(0, 0.05), step)
    script.write(store, now, goodbye=True)
    return Planted(onset, now)


def solved(script: Script, store: RunStore, fault: str) -> Planted:
    """Learns until the tasks are solved: reward at 1.0, groups without variance, vanishing gradients and entropy."""
    del fault
    rng, now = script.random, 0.0
    trainer = script.actor("trainer", 0, "n0")
    for step in range(160):
        right = 1.0 - math.exp(-step / 18)
        reward = 1.0 if step > 110 else min(1.0, max(0.0, right + rng.gauss(0, 0.02)))
        script.span(trainer, "generation", now, 4.0 * rng.uniform(0.8, 1.2), step=step)
        script.span(trainer, "policy_training", now + 5.0, 3.0, step=step)
        now += 8.1
        values = {"reward": reward, "frac_reward_zero_std": min(1.0, right**2 + rng.uniform(0, 0.05)),
                  "grad_norm": 0.0 if reward == 1.0 else 0.3 * (1 - right) * rng.lognormvariate(0, 0.4),
                  "entropy": 0.4 * (1 - right) + 0.01, "kl": 0.0002 * step, "loss": rng.gauss(0, 0.01),
                  "completions/mean_length": 800 - 2 * step + rng.gauss(0, 15),
                  "completions/clipped_ratio": 0.01, "learning_rate": 1e-6}  # fmt: skip
        for name, value in values.items():
            script.gauge(trainer, name, now - 0.05, value, step)
    script.write(store, now, goodbye=True)
    return Planted(0.0, now)


def tracked(script: Script, store: RunStore, fault: str) -> Planted:
    """Metrics as people log them to a tracker: odd names, a batch of two, validation every tenth step, no spans."""
    rng, now = script.random, 0.0
    driver = script.actor("", None, "host")
    onset = 0.0
    for step in range(1, 240):
        bad = fault if step >= 150 else ""
        onset = now if step == 150 else onset
        now += 30 * rng.uniform(0.8, 1.3) + (60 if step % 10 == 0 else 0)
        values = {
            "train/reward": float(rng.choice([0, 0.5, 0.5, 1.0])),
            "train/loss": rng.gauss(0, 0.5),
            "train/kl": 0.02 + 0.0004 * step + abs(rng.gauss(0, 0.01)),
            "train/entropy": 0.3 + rng.gauss(0, 0.05),
            "train/grad_norm": rng.lognormvariate(0.5, 0.8),
            "train/lr": 1e-5,
            "my/own": rng.random(),
        }
        if bad == "kl_explosion":
            values["train/kl"] *= 30 + step - 150
        if bad == "reward_collapse":
            values["train/reward"] = 0.0
        if step == 77:
            values["my/own"] = math.nan
        if step % 10 == 0:
            values["eval/accuracy"] = min(0.7, 0.3 + 0.002 * step) + rng.gauss(0, 0.04)
        for name, value in values.items():
            script.gauge(driver, name, now, value, step)
    script.write(store, now + 1.0, goodbye=True)
    return Planted(onset, now)


Shape = Callable[[Script, RunStore, str], Planted]

VARIATIONS: dict[str, Shape] = {
    "driven": driven, "overlapped": overlapped, "engines": engines, "resumed": resumed, "quick": quick,
    "slow_steps": slow_steps, "solved": solved, "tracked": tracked,
}  # fmt: skip
