"""More run shapes: other names of roles and phases, other time scales, other numbers of ranks."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.diagnosis_runs import Planted
from benchmarks.diagnosis_script import Script
from rl_insight.store.run_store import RunStore


def quick_learners(script: Script, store: RunStore, fault: str) -> Planted:
    """Four learners with two-second steps, without sessions; occasional evaluations."""
    rng, now, onset = script.random, 0.0, 0.0
    learners = [script.actor("learner", rank, "box") for rank in range(4)]
    for step in range(120):
        bad = fault if step >= 60 else ""
        if step == 60:
            onset = now
        slow = 5.0 if step == 0 else 1.0
        compute = [1.2 * slow * rng.uniform(0.95, 1.05) for _ in learners]
        if bad == "straggler":
            compute[2] *= 1.8
        if bad == "stall":
            script.span(learners[1], "fwd_bwd", now + 0.3, None, step=step)
            script.write(store, now + 300.0, goodbye=False)
            return Planted(now + 0.3, now + 300.0)
        for rank, learner in enumerate(learners):
            script.span(learner, "fetch", now, 0.3 * rng.uniform(0.9, 1.1), step=step)
            script.span(learner, "fwd_bwd", now + 0.35, compute[rank], step=step)
            script.span(learner, "apply_grads", now + 0.35 + max(compute), 0.2, step=step)
        now += 0.6 + max(compute) + (rng.random() if rng.random() < 0.05 else 0.0)
        if step % 25 == 24:
            script.span(learners[0], "run_eval", now, 12.0, step=step)
            now += 12.0
    script.write(store, now + 1.0, goodbye=True)
    return Planted(onset, now + 1.0)


def long_steps(script: Script, store: RunStore, fault: str, ranks: int = 200, steps: int = 16) -> Planted:
    """Many ranks with 20-minute steps: long sampling, long optimization."""
    rng, now, onset = script.random, 0.0, 0.0
    workers = [script.actor("megatron", rank, f"gpu-{rank // 8:02d}") for rank in range(ranks)]
    first = 8
    for step in range(steps):
        bad = fault if step >= first else ""
        if step == first:
            onset = now
        sample = [560.0 * rng.uniform(0.9, 1.1) for _ in workers]
        optimize = [600.0 * rng.uniform(0.98, 1.02) for _ in workers]
        if bad == "straggler":
            optimize[7] *= 1.5
        start = now + max(sample) + 5.0
        for rank, worker in enumerate(workers):
            script.span(worker, "sample_batch", now, sample[rank], step=step)
            script.span(worker, "optimize", start, optimize[rank], step=step)
        now = start + max(optimize) + 10.0
    script.write(store, now, goodbye=True)
    return Planted(onset, now)


def browsing_agents(script: Script, store: RunStore, fault: str) -> Planted:
    """A policy that learns from browser agents: sessions with tools, agents without steps."""
    rng, onset = script.random, 300.0
    policy = script.actor("policy_server", 0, "head")
    agents = [script.actor("env_worker", rank, f"cpu-{rank}") for rank in range(5)]
    end, number = 900.0, 0
    for agent in agents:
        now = rng.uniform(0.0, 3.0)
        while now < end:
            number += 1
            begin, session = now, f"episode-{number}"
            for _ in range(rng.randint(2, 4)):
                for name, tool, seconds in (("think", None, rng.lognormvariate(0.7, 0.3)),
                                            ("act", "browser", rng.lognormvariate(-0.5, 0.4))):  # fmt: skip
                    slow = 9.0 if tool and fault == "slow_tool" and now > onset else 1.0
                    given = {"tool": tool} if tool else None
                    script.span(agent, name, now, seconds * slow, segment="phase", session=session, attributes=given)
                    now += seconds * slow
            script.session(agent, session, begin, now, task=f"site-{number % 40}", reward=float(rng.random() < 0.4))
            now += 0.1
    for step in range(int(end / 30)):
        script.span(policy, "collect", 30.0 * step, 18.0 * rng.uniform(0.9, 1.1), step=step)
        script.span(policy, "learn", 30.0 * step + 20.5, 9.0 * rng.uniform(0.95, 1.05), step=step)
    script.write(store, end + 30.0, goodbye=True)
    return Planted(onset, end + 30.0)


def timed_by_metrics(script: Script, store: RunStore, fault: str) -> Planted:
    """Only a tracker's metrics: phases as `timing/...`, varying generation times, an evaluation every fifth step."""
    rng, now, onset = script.random, 0.0, 0.0
    driver = script.actor("", None, "head")
    for step in range(1, 80):
        bad = fault if step >= 50 else ""
        onset = now if step == 50 else onset
        times = {
            "timing/generate": 60 * rng.lognormvariate(0, 0.2),
            "timing/policy_train": 40 * rng.uniform(0.97, 1.03),
        }
        if bad == "slow_train":
            times["timing/policy_train"] *= 1.6
        times["profiling/Time taken: GRPOTrainer.format_reward"] = 1.0
        times["profiling/Time taken: GRPOTrainer.math_reward"] = 60.0 if bad == "slow_reward" else 2.0
        if step % 5 == 0:
            times["timing/eval"] = 120.0
        now += sum(times.values()) + 5.0
        reward = -0.5 + 0.008 * step + rng.gauss(0, 0.05)
        for name, value in {**times, "reward/avg_raw_reward": reward}.items():
            script.gauge(driver, name, now, value, step)
    script.write(store, now + 1.0, goodbye=True)
    return Planted(onset, now)


def probed(script: Script, store: RunStore, fault: str) -> Planted:
    """States with meaningless names, a probe every fourth step; another run takes the machine every tenth step."""
    rng, now, onset = script.random, 0.0, 0.0
    main = script.actor("main", 0, "box")
    for step in range(110):
        onset = now if step == 70 else onset
        slow = 1.8 if fault == "slow_fit" and step >= 70 else 1.0
        for name, seconds in (("collect", 6 * rng.uniform(0.8, 1.3)), ("fit", 5 * slow * rng.uniform(0.97, 1.03))):
            script.span(main, name, now, seconds, step=step)
            now += seconds + 0.05
        if step % 4 == 3:
            script.span(main, "gsm8k", now, 25.0, step=step)
            now += 25.0
        now += 120.0 if step % 10 == 9 else 0.0
    script.write(store, now + 1.0, goodbye=True)
    return Planted(onset, now)


def without_steps(script: Script, store: RunStore, fault: str) -> Planted:
    """Two processes without steps."""
    rng, now = script.random, 0.0
    workers = [script.actor("worker", rank, "box") for rank in range(2)]
    for number in range(200):
        seconds = 3 * rng.lognormvariate(0, 0.3)
        for worker in workers:
            script.span(worker, "crunch", now, seconds * rng.uniform(0.9, 1.1))
        now += 1.2 * seconds
        if fault == "hang" and number == 150:
            script.span(workers[0], "crunch", now, None)
            script.write(store, now + 200.0, goodbye=False)
            return Planted(now, now + 200.0)
    script.write(store, now + 1.0, goodbye=True)
    return Planted(0.0, now)


def curriculum(script: Script, store: RunStore, fault: str) -> Planted:
    """Batches double at step 50 and tasks become harder at step 80: intentional changes, reported or not."""
    rng, now = script.random, 0.0
    trainer = script.actor("trainer", 0, "box")
    for step in range(110):
        if fault != "untold" and step in {50, 80}:
            name = "config_change" if step == 50 else "curriculum"
            script.event(trainer, name, now, step, text="batch size 1024" if step == 50 else "stage 2")
        size = 2 if step >= 50 else 1
        for state in ("generate", "update"):
            seconds = 3 * size * rng.uniform(0.9, 1.1)
            script.span(trainer, state, now, seconds, step=step)
            now += seconds + 0.02
        learned = 0.8 * (1 - math.exp(-step / 20)) if step < 80 else 0.3 + 0.3 * (1 - math.exp((80 - step) / 20))
        script.gauge(trainer, "reward", now - 0.01, learned + rng.gauss(0, 0.015), step)
    script.write(store, now + 1.0, goodbye=True)
    return Planted(0.0, now)


def busy_machine(script: Script, store: RunStore, fault: str) -> Planted:
    """A machine that is twice busy with other work for four minutes: everything takes far longer."""
    rng, now, onset = script.random, 0.0, 0.0
    trainer = script.actor("trainer", 0, "box")
    workers = [script.actor("rollout", rank, "box") for rank in range(3)]
    starts: list[float] = []

    def load(at: float) -> float:
        return rng.uniform(0.9, 1.15) * (1.0, 2.2, 1.0, 2.8, 1.0)[min(int(at / 250), 4)]

    while now < 1150.0:
        step, bad = len(starts), fault if now > 905 else ""
        onset = onset or (now if bad else 0.0)
        starts.append(now)
        update = 3.0 if bad == "slow_update" else 1.0
        for name, usual in (("wait_for_samples", 3.0), ("update", update), ("sync_weights", 0.3)):
            seconds = usual * load(now) * rng.uniform(0.9, 1.2)
            script.span(trainer, name, now, seconds, step=step)
            now += seconds + 0.02
    for rank, worker in enumerate(workers):
        for slot in range(3):
            at, number = rng.uniform(0, 2), 0
            while at < now - 5:
                number += 1
                begin, session, bad = at, f"{rank}-{slot}-{number}", fault if at > 905 else ""
                step = max(place for place, start in enumerate(starts) if start <= at)
                tokens = int(rng.lognormvariate(4, 0.5))
                slow = 3.0 if bad == "slow_worker" and rank == 1 else 1.0
                tool = rng.lognormvariate(-1.5, 0.6) * (8.0 if bad == "slow_tool" else 1.0)
                phases: tuple[tuple[str, float, dict[str, Any]], ...] = (
                    ("generate", 0.012 * tokens * slow, {"tokens": tokens}),
                    ("toolcall", tool, {"tool": "calculator"}),
                    ("reward", 0.05, {}),
                )
                for name, usual, given in phases:
                    seconds = usual * load(at)
                    script.span(worker, name, at, seconds, segment="phase", session=session, step=step,
                                lane=f"slot_{slot}", attributes=given)  # fmt: skip
                    at += seconds
                script.session(worker, session, begin, at, step=step, reward=float(rng.random() < 0.4), tokens=tokens)
                at += 0.02
    script.write(store, now + 1.0, goodbye=True)
    return Planted(onset, now)


def quick_calls(script: Script, store: RunStore, fault: str) -> Planted:
    """Two-second steps, with workers that generate fifty times in each."""
    rng, onset = script.random, 120.0
    trainer = script.actor("trainer", 0, "box")
    workers = [script.actor("rollout", rank, "box") for rank in range(3)]
    for step in range(90):
        script.span(trainer, "wait_for_samples", 2.0 * step, 1.5, step=step)
        script.span(trainer, "update", 2.0 * step + 1.5, 0.45, step=step)
    for rank, worker in enumerate(workers):
        at = 0.0
        while at < 179.0:
            seconds = 0.04 * rng.uniform(0.8, 1.2) * (3.0 if fault and rank == 1 and at > onset else 1.0)
            script.span(worker, "generate", at, seconds, segment="phase", step=int(at / 2), attributes={"tokens": 4})
            at += seconds
    script.write(store, 181.0, goodbye=True)
    return Planted(onset, 180.0)
