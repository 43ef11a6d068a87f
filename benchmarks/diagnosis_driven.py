"""Synchronous GRPO with a driver that calls replicas and ranks: a long warm-up, heavy tails, clock skew."""

from __future__ import annotations

import math

from benchmarks.diagnosis_runs import Planted
from benchmarks.diagnosis_script import Actor, Script
from rl_insight.store.run_store import RunStore


def _gpus(script: Script, actors: list[Actor], start_s: float, end_s: float, throttled: int | None) -> None:
    """Record clocks, temperatures and power of one GPU per actor."""
    now = start_s
    while now < end_s:
        for number, actor in enumerate(actors):
            labels = {"source": "nvml", "host": actor.process.host, "gpu": str(number % 8)}
            is_slow = number == throttled
            readings = {
                "gpu_utilization_ratio": script.random.uniform(0.9, 1.0),
                "gpu_sm_clock_hertz": (1.1e9 if is_slow else 1.7e9) * script.random.uniform(0.98, 1.0),
                "gpu_temperature_celsius": 91.0 if is_slow else script.random.uniform(62, 74),
                "gpu_power_watts": script.random.uniform(520, 640),
                "gpu_power_limit_watts": 700.0,
            }
            for name, value in readings.items():
                script.gauge(actor, name, now, value, None, **labels)
        now += 10.0


class _Driven:
    """A driver that calls generation replicas and training ranks; heavy tails, and clocks that are off by 200 ms."""

    onset_step = 55

    def __init__(self, script: Script, store: RunStore, fault: str, warm: int) -> None:
        self.script, self.store, self.fault, self.warm = script, store, fault, warm
        self.driver = script.actor("driver", None, "head")
        self.replicas = [script.actor("rollout", rank, f"gen-{rank // 2}") for rank in range(6)]
        self.ranks = [script.actor("actor", rank, f"train-{rank // 4}") for rank in range(8)]
        self.skew = {
            actor.process.process_id: script.random.uniform(-0.2, 0.2) for actor in [*self.replicas, *self.ranks]
        }

    def at(self, actor: Actor, now: float) -> float:
        """Return a time on the clock of an actor."""
        return now + self.skew[actor.process.process_id]

    def generate(self, step: int, at: float, slow: float) -> float:
        """Generate on all replicas; returns when the slowest is done."""
        rng = self.script.random
        tails = [max(rng.lognormvariate(0, 1.0) for _ in range(12)) for _ in self.replicas]
        taken = [min(40.0, 2.0 + 1.2 * tail) * slow for tail in tails]
        for rank, actor in enumerate(self.replicas):
            self.script.span(actor, "vllm_generate", self.at(actor, at), taken[rank], step=step, lane=f"replica_{rank}")
        self.script.span(self.driver, "gen", at, max(taken) + 0.1, step=step)
        return at + max(taken) + 0.1

    def hang(self, step: int, at: float) -> Planted:
        """Generate with one replica that hangs or dies."""
        if self.fault == "lost_replica":
            self.replicas[2].died_s = at + 1.0
        for rank, actor in enumerate(self.replicas):
            taken = None if self.fault == "hung_replica" and rank == 4 else 6.0 + rank
            self.script.span(actor, "vllm_generate", at, taken, step=step, lane=f"replica_{rank}")
        self.script.span(self.driver, "gen", at, None, step=step)
        self.script.write(self.store, at + 300.0, goodbye=False)
        return Planted(at, at + 300.0)

    def train(self, step: int, at: float, slow: float, bad: str) -> float:
        """Train on all ranks; returns when the slowest is done."""
        rng = self.script.random
        for name, usual in (("old_log_prob", 1.6), ("update_actor", 5.0)):
            taken = [usual * slow * rng.uniform(0.96, 1.04) for _ in self.ranks]
            late = {"slow_rank": (5,), "throttled": (6,), "slow_node": (4, 5, 6, 7)}.get(bad, ())
            for rank in late:
                taken[rank] *= 1.6
            for rank, actor in enumerate(self.ranks):
                self.script.span(actor, name, self.at(actor, at), taken[rank], step=step, lane=f"rank_{rank}")
            self.script.span(self.driver, name, at, max(taken) + 0.05, step=step)
            at += max(taken) + 0.05
        return at

    def learn(self, step: int, at: float, bad: str) -> None:
        """Record metrics: a learning rate that warms up, a KL that grows slowly, an entropy that declines."""
        rng, since = self.script.random, step - self.onset_step
        values = {
            "critic/rewards/mean": min(0.95, 0.2 + 0.5 * (1 - math.exp(-step / 60)) + rng.gauss(0, 0.02)),
            "actor/entropy": 0.6 * math.exp(-step / 150) + rng.gauss(0, 0.01),
            "actor/kl_loss": 2e-4 * 1.04**step * rng.uniform(0.8, 1.25),
            "actor/grad_norm": rng.lognormvariate(-1.5, 0.5),
            "actor/lr": 1e-6 * min(1.0, (step + 1) / 20),
            "response_length/mean": 600 + 3 * step + rng.gauss(0, 40),
        }
        if bad == "reward_collapse":
            values["critic/rewards/mean"] = 0.05 + abs(rng.gauss(0, 0.01))
        if bad == "kl_explosion":
            values["actor/kl_loss"] = 0.2 * 1.4**since
        if bad == "entropy_collapse":
            values["actor/entropy"] *= math.exp(-(since + 1) / 6)
            values["critic/rewards/mean"] = 0.5 + rng.gauss(0, 0.02)
        if bad == "gradient_nan":
            values["actor/grad_norm"] = math.nan
        for place, (name, value) in enumerate(values.items()):
            self.script.gauge(self.driver, name, at + 1e-3 * place, value, step)

    def run(self, steps: int) -> Planted:
        """Write the run: validation every 20 steps, a checkpoint every 50."""
        script, rng = self.script, self.script.random
        now = onset = 0.0
        for step in range(steps):
            bad = self.fault if step >= self.onset_step else ""
            onset = now if step == self.onset_step else onset
            if bad in {"hung_replica", "lost_replica"}:
                return self.hang(step, now)
            slow = 1.0 + 2.0 * max(0.0, 1 - step / self.warm)
            at = self.generate(step, now, slow)
            reward = rng.uniform(0.3, 0.6)
            script.span(self.driver, "reward", at, reward, step=step)
            at = self.train(step, at + reward, slow, bad)
            sync = 0.7 * rng.uniform(0.9, 1.2) * (9.0 if bad == "slow_sync" else 1.0)
            script.span(self.driver, "update_weights", at, sync, step=step)
            at += sync
            for name, every, seconds in (("testing", 20, 25.0), ("save_checkpoint", 50, 18.0)):
                if step % every == every - 1:
                    script.span(self.driver, name, at, seconds, step=step)
                    at += seconds
            self.learn(step, at, bad)
            now = at + rng.uniform(0.05, 0.3)
        if self.fault in {"", "throttled"}:
            _gpus(script, self.ranks, 0.0, onset, None)
            _gpus(script, self.ranks, onset, now, 6 if self.fault else None)
        script.write(self.store, now + 1.0, goodbye=True)
        return Planted(onset, now)


def driven(script: Script, store: RunStore, fault: str) -> Planted:
    """Synchronous GRPO with a driver; the first ten steps are slow."""
    return _Driven(script, store, fault, warm=10).run(90)
