"""Run shapes unlike those of the suite: other names of roles and phases, other time scales, other numbers of ranks."""

from __future__ import annotations

from benchmarks.diagnosis_runs import Planted
from benchmarks.diagnosis_script import Script
from rl_insight.store.run_store import RunStore


def quick_learners(script: Script, store: RunStore, fault: str) -> Planted:
    """Four learners with steps of two seconds, without sessions; an evaluation now and then."""
    rng, moment, onset = script.random, 0.0, 0.0
    learners = [script.actor("learner", rank, "box") for rank in range(4)]
    for step in range(120):
        bad = fault if step >= 60 else ""
        if step == 60:
            onset = moment
        slow = 5.0 if step == 0 else 1.0
        compute = [1.2 * slow * rng.uniform(0.95, 1.05) for _ in learners]
        if bad == "straggler":
            compute[2] *= 1.8
        if bad == "stall":
            script.span(learners[1], "fwd_bwd", moment + 0.3, None, step=step)
            script.write(store, moment + 300.0, goodbye=False)
            return Planted(moment + 0.3, moment + 300.0)
        for rank, learner in enumerate(learners):
            script.span(learner, "fetch", moment, 0.3 * rng.uniform(0.9, 1.1), step=step)
            script.span(learner, "fwd_bwd", moment + 0.35, compute[rank], step=step)
            script.span(learner, "apply_grads", moment + 0.35 + max(compute), 0.2, step=step)
        moment += 0.6 + max(compute) + (rng.random() if rng.random() < 0.05 else 0.0)
        if step % 25 == 24:
            script.span(learners[0], "run_eval", moment, 12.0, step=step)
            moment += 12.0
    script.write(store, moment + 1.0, goodbye=True)
    return Planted(onset, moment + 1.0)


def long_steps(script: Script, store: RunStore, fault: str, ranks: int = 200, steps: int = 16) -> Planted:
    """Many ranks whose steps take 20 minutes: a long sampling, a long optimization."""
    rng, moment, onset = script.random, 0.0, 0.0
    workers = [script.actor("megatron", rank, f"gpu-{rank // 8:02d}") for rank in range(ranks)]
    first = 8
    for step in range(steps):
        bad = fault if step >= first else ""
        if step == first:
            onset = moment
        sample = [560.0 * rng.uniform(0.9, 1.1) for _ in workers]
        optimize = [600.0 * rng.uniform(0.98, 1.02) for _ in workers]
        if bad == "straggler":
            optimize[7] *= 1.5
        start = moment + max(sample) + 5.0
        for rank, worker in enumerate(workers):
            script.span(worker, "sample_batch", moment, sample[rank], step=step)
            script.span(worker, "optimize", start, optimize[rank], step=step)
        moment = start + max(optimize) + 10.0
    script.write(store, moment, goodbye=True)
    return Planted(onset, moment)


def browsing_agents(script: Script, store: RunStore, fault: str) -> Planted:
    """A policy that learns from agents in browsers: sessions with tools, agents that know nothing of steps."""
    rng, onset = script.random, 300.0
    policy = script.actor("policy_server", 0, "head")
    agents = [script.actor("env_worker", rank, f"cpu-{rank}") for rank in range(5)]
    end, number = 900.0, 0
    for agent in agents:
        moment = rng.uniform(0.0, 3.0)
        while moment < end:
            number += 1
            begin, session = moment, f"episode-{number}"
            for _ in range(rng.randint(2, 4)):
                for name, tool, seconds in (("think", None, rng.lognormvariate(0.7, 0.3)),
                                            ("act", "browser", rng.lognormvariate(-0.5, 0.4))):  # fmt: skip
                    slow = 9.0 if tool and fault == "slow_tool" and moment > onset else 1.0
                    told = {"tool": tool} if tool else None
                    script.span(agent, name, moment, seconds * slow, segment="phase", session=session, attributes=told)
                    moment += seconds * slow
            script.session(agent, session, begin, moment, task=f"site-{number % 40}", reward=float(rng.random() < 0.4))
            moment += 0.1
    for step in range(int(end / 30)):
        script.span(policy, "collect", 30.0 * step, 18.0 * rng.uniform(0.9, 1.1), step=step)
        script.span(policy, "learn", 30.0 * step + 20.5, 9.0 * rng.uniform(0.95, 1.05), step=step)
    script.write(store, end + 30.0, goodbye=True)
    return Planted(onset, end + 30.0)
