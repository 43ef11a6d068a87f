"""What a healthy run does besides training: compiles at the start, evaluates, saves checkpoints, resumes from one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.async_grpo.policy import CALL_TOOL, Context, Policy
from examples.async_grpo.task import ANSWER_LENGTH, random_prompt, reward

SLOW_STEPS = 2
EVALUATION_SECONDS = 3.0
CHECKPOINT_SECONDS = 2.0
QUESTIONS = 64


@dataclass(frozen=True, slots=True)
class Interruptions:
    """How often a run interrupts training; None for never."""

    slow_start_s: float = 0.0
    """How much longer each of the first updates takes, like one that compiles."""
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    checkpoint: Path = Path("async_grpo-checkpoint.npz")
    resume: bool = False
    """Continue from the checkpoint, if there is one."""

    def is_evaluated(self, step: int) -> bool:
        """Return whether the policy is evaluated after a step."""
        return self.evaluate_every is not None and step % self.evaluate_every == 0

    def is_saved(self, step: int) -> bool:
        """Return whether a checkpoint follows a step."""
        return self.checkpoint_every is not None and step % self.checkpoint_every == 0

    def first_policy(self) -> Policy:
        """Return the initial policy of the training."""
        if not self.resume or not self.checkpoint.exists():
            return Policy()
        with np.load(self.checkpoint) as saved:
            return Policy(saved["weights"], int(saved["version"]))

    def save(self, policy: Policy) -> None:
        """Write a checkpoint; a run that is killed meanwhile keeps the previous one."""
        unfinished = self.checkpoint.with_suffix(".part.npz")
        np.savez(unfinished, weights=policy.weights, version=policy.version)
        unfinished.replace(self.checkpoint)


def held_out_reward(policy: Policy, seed: int = 1_000_003) -> float:
    """Return the mean reward on a fixed set of questions."""
    rng = np.random.default_rng(seed)
    scores = []
    for _ in range(QUESTIONS):
        answer: list[int] = []
        context = Context(prompt := random_prompt(rng))
        while len(answer) < ANSWER_LENGTH:
            token = policy.choose(context, rng).token
            if token == CALL_TOOL:
                context = Context(prompt, tool_called=True, tool_result=prompt.answer)
            else:
                answer.append(token)
                context = Context(prompt, min(len(answer), ANSWER_LENGTH - 1), context.tool_called, context.tool_result)
        scores.append(reward(prompt, tuple(answer), int(context.tool_called)))
    return float(np.mean(scores))
