"""A rollout worker: keeps several samples in flight, starts each with the newest weights, and sends complete groups.

Each slot is a lane of the timeline and shows the state of its sample: generate, toolcall, reward, wait_weights, or idle
if the trainer cannot keep up.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import time

import numpy as np

import rl_insight as insight
from examples.async_grpo.agent import Agent, Tool, UpdateSession
from examples.async_grpo.faults import VICTIM
from examples.async_grpo.pace import Pace
from examples.async_grpo.policy import Policy
from examples.async_grpo.samples import Group, Sample
from examples.async_grpo.settings import Links, Settings
from examples.async_grpo.task import random_prompt
from examples.async_grpo.tool import ToolClient
from examples.async_grpo.weights import NOTHING_PUBLISHED

logger = logging.getLogger(__name__)

TRANSFER_SECONDS = 0.08
STRAGGLER_SLOWDOWN = 3.0
TOOL_TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.02
MAX_DELIVERED = 1000
"""Groups whose training is awaited; the trainer drops some of them."""


class RolloutWorker:
    """Generates groups of samples until it is cancelled."""

    def __init__(self, settings: Settings, links: Links, rank: int, tool: Tool) -> None:
        self._settings = settings
        self._links = links
        self._rank = rank
        self._tool = tool
        self._pace = Pace(settings.speed, STRAGGLER_SLOWDOWN if rank == settings.straggler else 1.0)
        self._rng = np.random.default_rng([settings.seed, rank])
        self._policy = Policy(version=NOTHING_PUBLISHED)
        self._pulling = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._sessions: dict[str, list[UpdateSession]] = {}
        """Those of each group that has not been trained on."""
        self._group = self._new_group()
        self._unstarted = settings.group_size
        self._running = 0

    async def run(self) -> None:
        """Keep all slots busy."""
        lanes = [f"rollout_{self._rank}/slot_{slot}" for slot in range(self._settings.slots)]
        await asyncio.gather(self._note_training(), *(self._run_slot(lane) for lane in lanes))

    async def _note_training(self) -> None:
        """Give sessions the step that trains on them: only then is it known how stale they were."""
        while True:
            try:
                trained = self._links.trained[self._rank].get_nowait()
            except queue.Empty:
                await asyncio.sleep(POLL_SECONDS)
                continue
            for update_session in self._sessions.pop(trained.group_id, ()):
                update_session(step=trained.step)

    async def _run_slot(self, lane: str) -> None:
        agent = Agent(lane, self._tool, self._pace, self._rng, self._settings.fault)
        while True:
            policy = await self._newest_policy(lane)
            self._suffer(policy.version)
            group = self._next_group()
            # Weights of version 6 are the result of step 6, so their samples are for step 7.
            with insight.step(policy.version + 1):
                sample = await self._run_sample(agent, group, policy)
            group.samples.append(sample)
            if agent.update_session is not None:
                self._sessions.setdefault(group.group_id, []).append(agent.update_session)
            if len(group.samples) == self._settings.group_size:
                await self._deliver(group, lane)

    def _suffer(self, step: int) -> None:
        """Apply the faults of this worker."""
        if self._rank != VICTIM:
            return
        self._settings.fault.freeze("dead_rollout", step)
        if self._settings.fault.is_on("slow_rollout", step):
            self._pace.slowdown = STRAGGLER_SLOWDOWN

    async def _run_sample(self, agent: Agent, group: Group, policy: Policy) -> Sample:
        """Run one sample and count it."""
        started = time.perf_counter()
        self._running += 1
        insight.metric_gauge("running_samples", self._running, rank=self._rank)
        try:
            sample = await agent.run_sample(group.prompt, policy)
        finally:
            self._running -= 1
            insight.metric_gauge("running_samples", self._running, rank=self._rank)
        insight.metric_histogram("sample_latency_seconds", time.perf_counter() - started, rank=self._rank)
        insight.metric_histogram("response_length", sample.tokens, "Tokens per response", task=group.prompt.kind)
        insight.metric_count("samples", rank=self._rank, task=group.prompt.kind)
        insight.metric_count("generated_tokens", sample.tokens, rank=self._rank)
        return sample

    async def _newest_policy(self, lane: str) -> Policy:
        """Return the newest weights; the first slot that needs them pulls, the others wait for it."""
        if self._links.weights.version == self._policy.version != NOTHING_PUBLISHED:
            return self._policy
        with insight.trace_state("wait_weights", lane):
            async with self._pulling:
                await self._pull()
        return self._policy

    async def _pull(self) -> None:
        while self._links.weights.version == NOTHING_PUBLISHED:  # noqa: ASYNC110  # another process publishes
            await asyncio.sleep(POLL_SECONDS)
        if self._links.weights.version == self._policy.version:
            return
        await self._pace.wait(TRANSFER_SECONDS)
        self._policy = self._links.weights.pull()
        insight.trace_event("weights_received", version=self._policy.version)
        insight.metric_gauge("weight_version", self._policy.version, role="rollout", rank=self._rank)

    def _next_group(self) -> Group:
        """Return the group that the next sample belongs to."""
        if self._unstarted == 0:
            self._group, self._unstarted = self._new_group(), self._settings.group_size
        self._unstarted -= 1
        return self._group

    def _new_group(self) -> Group:
        while len(self._sessions) > MAX_DELIVERED:
            del self._sessions[next(iter(self._sessions))]
        return Group(f"{self._rank}-{next(self._numbers)}", random_prompt(self._rng), rank=self._rank)

    async def _deliver(self, group: Group, lane: str) -> None:
        """Send a complete group to the trainer; wait if its queue is full."""
        with contextlib.suppress(queue.Full):
            self._links.groups.put_nowait(group)
            return
        logger.info("the sample queue is full: slot waits", extra={"group": group.group_id})
        with insight.trace_state("idle", lane, reason="queue_full"):
            while True:
                await asyncio.sleep(POLL_SECONDS)
                with contextlib.suppress(queue.Full):
                    self._links.groups.put_nowait(group)
                    return


def run_rollout_worker(settings: Settings, links: Links, rank: int, tool_port: int) -> None:
    """Work until the run stops."""
    # Data in the pipe is useless after the run stops: do not wait for the trainer to read it.
    links.groups.cancel_join_thread()
    timeout_s = None if settings.hang else max(TOOL_TIMEOUT_SECONDS / settings.speed, 2.0)
    asyncio.run(_work(RolloutWorker(settings, links, rank, ToolClient(tool_port, timeout_s).evaluate), links))


async def _work(worker: RolloutWorker, links: Links) -> None:
    work = asyncio.create_task(worker.run())
    while not links.stop.is_set():
        await asyncio.wait([work], timeout=0.1)
        if work.done():
            break
    work.cancel()  # ends the spans in flight as cancelled; a failure is raised to the caller
    with contextlib.suppress(asyncio.CancelledError):
        await work
