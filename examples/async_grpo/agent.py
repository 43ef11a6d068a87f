"""The agent loop: one sample from prompt to reward. This is the code that a user would instrument first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np

import rl_insight as insight
from examples.async_grpo.faults import NO_FAULT, Fault
from examples.async_grpo.pace import Pace, thinking_tokens
from examples.async_grpo.policy import CALL_TOOL, Choice, Context, Policy
from examples.async_grpo.samples import Sample
from examples.async_grpo.task import ANSWER_LENGTH, Prompt, digits, reward

REWARD_SECONDS = 0.02
THINKING_AFTER_TOOL = 4


class ToolError(Exception):
    """The tool returned no result; `kind` is the reason, short enough for a label."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"the calculator returned no result: {kind}")
        self.kind = kind


class VerifierError(Exception):
    """The verifier failed; the sample scores 0."""


UpdateSession = Callable[..., None]
Tool = Callable[[str], Awaitable[int]]
"""Evaluates an expression; raises `ToolError`."""


class Agent:
    """Answers prompts on one lane of the timeline."""

    def __init__(self, lane: str, tool: Tool, pace: Pace, rng: np.random.Generator, fault: Fault = NO_FAULT) -> None:
        self.lane = lane
        self._fault = fault
        self.update_session: UpdateSession | None = None
        """Sets fields of the latest sample's session."""
        self._step = 0
        self._calls = 0
        self._tool = tool
        self._pace = pace
        self._rng = rng

    async def run_sample(self, prompt: Prompt, policy: Policy) -> Sample:
        """Answer one prompt with one set of weights."""
        self._step = policy.version + 1
        # One session per sample: its phases, its tool calls in another process and its reward become one record.
        with insight.session(
            prompt.expression, model_version=policy.version, lane=self.lane, prompt=f"What is {prompt.expression}?"
        ) as session:
            self.update_session = session.update
            context, thinking, tokens = Context(prompt), thinking_tokens(self._rng), 0
            choices: list[Choice] = []
            answer: list[int] = []
            while len(answer) < ANSWER_LENGTH:
                choice = await self._generate(policy, context, thinking + 1)
                choices.append(choice)
                tokens += thinking + 1
                thinking = 0
                if choice.token == CALL_TOOL:
                    context = replace(context, tool_called=True, tool_result=await self._call_tool(prompt))
                    thinking = THINKING_AFTER_TOOL
                else:
                    answer.append(choice.token)
                    context = replace(context, position=min(len(answer), ANSWER_LENGTH - 1))
            score = await self._reward(prompt, tuple(answer), tool_calls=int(context.tool_called))
            session.finalize("accepted", reward=score, tokens=tokens)
        return Sample(prompt, policy.version, choices, score, tokens, int(context.tool_called))

    async def _generate(self, policy: Policy, context: Context, tokens: int) -> Choice:
        with insight.phase("generate", tokens=tokens) as turn:
            await self._pace.generate(tokens)
            choice = policy.choose(context, self._rng)
            # Text is only recorded with --capture-text; otherwise, only its length is.
            calls = choice.token == CALL_TOOL
            turn.set_attribute("response", "I ask the calculator." if calls else str(choice.token))
            return choice

    async def _call_tool(self, prompt: Prompt) -> tuple[int, ...] | None:
        """Return the tool's result; None if it failed, in which case the policy continues without it."""
        try:
            with insight.phase("toolcall", tool="calculator", tool_arguments=prompt.expression) as call:
                self._calls += 1
                if self._fault.is_on("slow_tool", self._step):
                    await asyncio.sleep(1.5)
                if self._fault.is_on("tool_errors", self._step) and self._calls % 3 == 0:
                    raise ToolError("overloaded")  # noqa: TRY301  # like the tool itself
                value = await self._tool(prompt.expression)
                call.set_attribute("tool_result", str(value))
                return digits(value)
        except ToolError as error:
            insight.metric_count("tool_errors", tool="calculator", type=error.kind)
            return None

    async def _reward(self, prompt: Prompt, answer: tuple[int, ...], tool_calls: int) -> float:
        self._calls += 1
        with contextlib.suppress(VerifierError), insight.phase("reward"):
            await self._pace.wait(REWARD_SECONDS)
            if self._fault.is_on("slow_reward", self._step):
                await asyncio.sleep(1.5)
            while self._fault.is_on("blocked_reward", self._step):  # noqa: ASYNC110  # it never ends
                await asyncio.sleep(1.0)
            if self._fault.is_on("failing_reward", self._step) and self._calls % 3 == 0:
                raise VerifierError
            if not self._fault.is_on("zero_reward", self._step):
                return reward(prompt, answer, tool_calls)
        return 0.0
