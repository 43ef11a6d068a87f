"""The training in the example is real: checked in this process, without any waiting."""

import asyncio
import doctest
import math
from statistics import mean

import numpy as np
import pytest

from examples.async_grpo import task, tool
from examples.async_grpo.agent import Agent, ToolError
from examples.async_grpo.grpo import Optimizer, make_batch
from examples.async_grpo.interruptions import Interruptions, held_out_reward
from examples.async_grpo.pace import SECONDS_PER_TOKEN, Pace
from examples.async_grpo.policy import CALL_TOOL, Context, Policy
from examples.async_grpo.samples import Group, Sample, SampleBuffer
from examples.async_grpo.task import Prompt, random_prompt, reward
from examples.async_grpo.tool import evaluate
from examples.async_grpo.trainer import EPOCHS


async def calculator(expression):
    return evaluate(expression)


async def broken_calculator(expression):
    raise ToolError("timeout")


def make_agent(seed, tool=calculator):
    return Agent("lane", tool, Pace(math.inf), np.random.default_rng(seed))


def train(seed, steps, lag):
    """Train with samples that are `lag` versions old; returns the last policy and the mean rewards."""
    agent, rng, optimizer = make_agent(seed), np.random.default_rng(seed), Optimizer()
    history, rewards = [Policy()], []
    for step in range(1, steps + 1):
        writer = history[max(0, len(history) - 1 - lag)]
        groups = []
        for number in range(8):
            prompt = random_prompt(rng)
            samples = [asyncio.run(agent.run_sample(prompt, writer)) for _ in range(8)]
            groups.append(Group(str(number), prompt, samples))
        batch, policy = make_batch(groups), history[-1]
        for _ in range(EPOCHS):
            policy, _ = optimizer.update(policy, batch)
        history.append(Policy(policy.weights, step))
        rewards.append(mean(sample.reward for group in groups for sample in group.samples))
    return history[-1], rewards


def call_probability(policy, kind):
    features = Context(Prompt(kind, 3, 4)).features()
    return float(np.exp(policy.log_probs(features[None], np.array([True]))[0, CALL_TOOL]))


@pytest.mark.parametrize("lag", [0, 2])
def test_reward_rises_and_the_tool_is_used_where_it_helps(lag):
    policy, rewards = train(seed=0, steps=40, lag=lag)
    assert mean(rewards[:3]) < 0.3
    assert mean(rewards[-3:]) > 0.75
    assert call_probability(policy, "multiply") > 0.9
    assert call_probability(policy, "add") < 0.1


def test_a_failed_tool_still_gives_a_finished_sample():
    policy = Policy()
    policy.weights[:, CALL_TOOL] += 50  # always calls
    sample = asyncio.run(make_agent(0, broken_calculator).run_sample(Prompt("multiply", 7, 8), policy))
    assert sample.tool_calls == 1
    assert [choice.token == CALL_TOOL for choice in sample.choices] == [True, False, False]


def test_group_with_equal_rewards_changes_nothing():
    agent, policy = make_agent(0), Policy()
    samples = [asyncio.run(agent.run_sample(Prompt("add", 1, 2), policy)) for _ in range(4)]
    for sample in samples:
        sample.reward = 1.0
    updated, stats = Optimizer().update(policy, make_batch([Group("g", samples[0].prompt, samples)]))
    assert np.array_equal(updated.weights, policy.weights)
    assert stats.grad_norm == 0


def test_samples_of_the_same_weights_have_no_kl():
    agent, policy = make_agent(1), Policy()
    prompt = Prompt("add", 4, 5)
    group = Group("g", prompt, [asyncio.run(agent.run_sample(prompt, policy)) for _ in range(8)])
    _, stats = Optimizer().update(policy, make_batch([group]))
    assert stats.kl == pytest.approx(0)
    assert stats.clip_fraction == 0


@pytest.mark.parametrize(
    ("answer", "tool_calls", "expected"),
    [((5, 6), 0, 1.0), ((5, 6), 1, 0.95), ((5, 0), 0, 0.5), ((0, 0), 1, -0.05)],
)
def test_reward_counts_right_digits_and_the_tool(answer, tool_calls, expected):
    assert reward(Prompt("multiply", 7, 8), answer, tool_calls) == pytest.approx(expected)


def group_of(version, *more):
    prompt = Prompt("add", 1, 1)
    return Group("g", prompt, [Sample(prompt, number, [], 0.0, 1, 0) for number in (version, *more)])


def test_buffer_gives_the_oldest_groups_first_and_only_when_there_are_enough():
    buffer = SampleBuffer(max_staleness=4)
    first, second, third = group_of(1), group_of(2), group_of(3)
    buffer.add(first)
    assert buffer.take(2, version=3) is None
    buffer.add(second)
    buffer.add(third)
    assert buffer.take(2, version=3) == [first, second]
    assert len(buffer) == 1


def test_buffer_drops_and_counts_what_is_too_stale():
    buffer = SampleBuffer(max_staleness=2)
    buffer.add(group_of(5, 9))  # as stale as its stalest sample
    buffer.add(group_of(6))
    assert buffer.take(1, version=8)[0].version == 6
    assert buffer.dropped == 1


def test_straggler_and_speed_change_how_long_generation_waits(monkeypatch):
    asked = []

    async def note(seconds):
        asked.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    asyncio.run(Pace(speed=2.0, slowdown=3.0).generate(10))
    asyncio.run(Pace(speed=2.0, slowdown=3.0).wait(1.0))
    assert asked == [pytest.approx(10 * SECONDS_PER_TOKEN * 3 / 2), 0.5]


@pytest.mark.parametrize("module", [task, tool])
def test_examples_in_docstrings_are_true(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted
    assert outcome.failed == 0


def test_a_policy_that_was_saved_continues_where_it_was(tmp_path):
    policy, rewards = train(seed=0, steps=30, lag=0)
    choices = Interruptions(checkpoint=tmp_path / "policy.npz", checkpoint_every=10, evaluate_every=15, resume=True)
    assert choices.first_policy().version == 0  # there is no checkpoint yet
    choices.save(policy)
    resumed = choices.first_policy()
    assert (resumed.version, resumed.weights.tolist()) == (30, policy.weights.tolist())
    assert held_out_reward(resumed) > rewards[0] + 0.3
    assert [step for step in range(1, 31) if choices.is_saved(step)] == [10, 20, 30]
    assert [step for step in range(1, 31) if choices.is_evaluated(step)] == [15, 30]
