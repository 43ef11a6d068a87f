"""The trainer: repeatedly waits for samples, improves the policy and publishes its weights."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import time
from collections.abc import Iterator
from statistics import mean, pstdev

import rl_insight as insight
from examples.async_grpo.grpo import Optimizer, UpdateStats, make_batch
from examples.async_grpo.interruptions import CHECKPOINT_SECONDS, EVALUATION_SECONDS, SLOW_STEPS, held_out_reward
from examples.async_grpo.pace import Pace
from examples.async_grpo.policy import Policy
from examples.async_grpo.samples import Group, SampleBuffer, Trained
from examples.async_grpo.settings import Links, Settings
from examples.async_grpo.task import KINDS

logger = logging.getLogger(__name__)

LANE = "trainer"
EPOCHS = 4
EPOCH_SECONDS = 0.1
ADVANTAGE_SECONDS = 0.05
PUBLISH_SECONDS = 0.1


class Trainer:
    """The training loop. Step n produces the weights of version n; version 0 is the initial policy."""

    def __init__(self, settings: Settings, links: Links) -> None:
        self._settings = settings
        self._links = links
        self._pace = Pace(settings.speed)
        self._buffer = SampleBuffer(settings.max_staleness)
        self._policy = settings.interruptions.first_policy()
        self._first_step = self._policy.version + 1
        self._optimizer = Optimizer()
        self._dropped = 0

    def run(self) -> None:
        """Train until the steps are done or the run is stopped."""
        self._publish()
        step = self._first_step
        while self._settings.steps is None or step <= self._settings.steps:
            insight.set_step(step)
            if not self._train_step(step):
                return
            step += 1

    def _train_step(self, step: int) -> bool:
        """Do one step; False if the run was stopped during it."""
        started = time.perf_counter()
        fault = self._settings.fault
        with insight.trace_span("train_step", {"version": self._policy.version}, lane=LANE):
            if fault.is_on("slow_data", step):
                with timed_state("load_data"):
                    fault.delay("slow_data", step, 2.0)
            with timed_state("wait_for_samples"):
                groups = self._wait_for_groups()
            if groups is None:
                return False
            for group in groups:
                self._links.trained[group.rank].put(Trained(group.group_id, step))
            self._report_samples(groups)
            with timed_state("compute_advantages"):
                self._pace.sleep(ADVANTAGE_SECONDS)
                batch = make_batch(groups)
            fault.delay("lost_time", step, 2.0)
            with timed_state("update"):
                fault.delay("slow_update", step, 2.0)
                fault.hang("stuck_update", step)
                if step < self._first_step + SLOW_STEPS:
                    time.sleep(self._settings.interruptions.slow_start_s)
                for _ in range(EPOCHS):
                    self._pace.sleep(EPOCH_SECONDS)  # simulates forward and backward passes on a GPU
                    self._policy, stats = self._optimizer.update(self._policy, batch)
            self._policy = Policy(self._policy.weights, version=step)
            with timed_state("sync_weights"):
                fault.delay("slow_sync", step, 3.0)
                fault.hang("stuck_sync", step)
                self._publish()
            self._interrupt(step)
        self._report_step(step, groups, stats, time.perf_counter() - started)
        return True

    def _interrupt(self, step: int) -> None:
        """Evaluate and save if it is time; the workers continue meanwhile."""
        if self._settings.interruptions.is_evaluated(step):
            with timed_state("evaluate"):
                self._pace.sleep(EVALUATION_SECONDS)
                insight.metric_gauge("eval/reward_mean", held_out_reward(self._policy))
        if self._settings.interruptions.is_saved(step):
            with timed_state("save_checkpoint"):
                self._pace.sleep(CHECKPOINT_SECONDS)
                self._settings.interruptions.save(self._policy)

    def _wait_for_groups(self) -> list[Group] | None:
        """Return the groups of the next step; None if the run was stopped while waiting."""
        while True:
            groups = self._buffer.take(self._settings.groups_per_step, self._policy.version)
            if self._buffer.dropped > self._dropped:
                self._report_dropped(self._buffer.dropped - self._dropped)
            if groups is not None:
                return groups
            if self._links.stop.is_set():
                return None
            with contextlib.suppress(queue.Empty):
                self._buffer.add(self._links.groups.get(timeout=0.1))

    def _publish(self) -> None:
        self._pace.sleep(PUBLISH_SECONDS)
        self._links.weights.publish(self._policy)
        insight.trace_event("weights_published", version=self._policy.version)
        insight.metric_gauge("weight_version", self._policy.version, role="trainer", rank=0)

    def _report_dropped(self, count: int) -> None:
        self._dropped += count
        insight.metric_count("groups_dropped", count, "Groups that were never trained on", reason="stale")
        groups = "group" if count == 1 else "groups"
        logger.warning("dropped %d %s: more than %d versions old", count, groups, self._settings.max_staleness)

    def _report_samples(self, groups: list[Group]) -> None:
        """Record statistics of the groups: rewards, lengths, staleness, and the queue."""
        samples = [sample for group in groups for sample in group.samples]
        insight.metric_gauge("reward_mean", mean(sample.reward for sample in samples))
        insight.metric_gauge("reward_std", pstdev(sample.reward for sample in samples))
        for kind in KINDS:
            of_kind = [sample for sample in samples if sample.prompt.kind == kind]
            if of_kind:
                insight.metric_gauge("reward_by_task", mean(sample.reward for sample in of_kind), task=kind)
                insight.metric_gauge("tool_call_rate", mean(sample.tool_calls for sample in of_kind), task=kind)
        insight.metric_gauge("response_length_mean", mean(sample.tokens for sample in samples))
        insight.metric_gauge("response_length_max", max(sample.tokens for sample in samples))
        lags = [self._policy.version - sample.version for sample in samples]
        if self._settings.fault.is_on("stale", self._policy.version):
            lags = [12 for _ in lags]
        insight.metric_gauge("staleness_mean", mean(lags), "Versions between generation and training")
        insight.metric_gauge("staleness_max", max(lags))
        same = mean(len({sample.reward for sample in group.samples}) == 1 for group in groups)
        insight.metric_gauge("uniform_group_fraction", same, "Groups with identical rewards: no learning signal")
        insight.metric_gauge("queue_depth", self._queue_depth(), "Groups queued for the trainer")

    def _reported(self, name: str, value: float, step: int) -> float:
        """Return a statistic as it is reported, which a fault may change."""
        if name == "loss" and self._settings.fault.is_on("not_a_number", step):
            return math.nan
        return value * 1000 + 1 if name == "kl" and self._settings.fault.is_on("kl_blowup", step) else value

    def _queue_depth(self) -> int:
        try:
            return len(self._buffer) + self._links.groups.qsize()
        except NotImplementedError:  # macOS does not support the size of such a queue
            return len(self._buffer)

    def _report_step(self, step: int, groups: list[Group], stats: UpdateStats, seconds: float) -> None:
        """Record the results of the step, and print them on one line."""
        for name in ("loss", "kl", "entropy", "clip_fraction", "grad_norm"):
            insight.metric_gauge(name, self._reported(name, getattr(stats, name), step))
        samples = [sample for group in groups for sample in group.samples]
        tokens_per_second = sum(sample.tokens for sample in samples) / seconds
        insight.metric_gauge("step_time_seconds", seconds)
        insight.metric_gauge("throughput_tokens_per_second", tokens_per_second)
        insight.metric_count("steps")
        reward = mean(sample.reward for sample in samples)
        logger.info("step done", extra={"reward_mean": reward, "step_time_seconds": seconds})
        print(f"step {step:>4}  reward {reward:5.2f}  {tokens_per_second:6.0f} tokens/s  {seconds:5.2f} s", flush=True)


@contextlib.contextmanager
def timed_state(name: str) -> Iterator[None]:
    """Record a state on the trainer's lane, and its duration as a metric."""
    started = time.perf_counter()
    with insight.trace_state(name, LANE):
        yield
    insight.metric_gauge("timing_seconds", time.perf_counter() - started, phase=name)


def run_trainer(settings: Settings, links: Links, _rank: int) -> None:
    """Train in this process."""
    Trainer(settings, links).run()
