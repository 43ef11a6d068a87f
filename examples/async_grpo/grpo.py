"""Group-relative policy optimization: advantages within a group, and PPO's clipped update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import rl_insight as insight
from examples.async_grpo.policy import Policy
from examples.async_grpo.samples import Group

CLIP = 0.2
LEARNING_RATE = 0.1
SPREAD_FLOOR = 0.1
"""Keeps the advantages small in a group whose rewards hardly differ."""


@dataclass(slots=True)
class TrainingBatch:
    """The tokens of many samples, one per row."""

    features: np.ndarray
    tokens: np.ndarray
    may_call: np.ndarray
    log_probs: np.ndarray
    """Under the weights that generated them, which may be several versions old."""
    advantages: np.ndarray


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """Statistics of one pass over a batch."""

    loss: float
    kl: float
    """How far the policy is from those that generated the samples."""
    entropy: float
    clip_fraction: float
    grad_norm: float


@insight.trace_op("grpo.make_batch")
def make_batch(groups: list[Group]) -> TrainingBatch:
    """Compare each sample with its group, and lay out all tokens as arrays."""
    choices, advantages = [], []
    for group in groups:
        rewards = np.array([sample.reward for sample in group.samples])
        relative = (rewards - rewards.mean()) / (rewards.std() + SPREAD_FLOOR)
        for sample, advantage in zip(group.samples, relative, strict=True):
            choices += sample.choices
            advantages += [advantage] * len(sample.choices)
    return TrainingBatch(
        features=np.stack([choice.features for choice in choices]),
        tokens=np.array([choice.token for choice in choices]),
        may_call=np.array([choice.may_call for choice in choices]),
        log_probs=np.array([choice.log_prob for choice in choices]),
        advantages=np.array(advantages),
    )


class Optimizer:
    """Adam, with the clipped policy gradient of PPO."""

    def __init__(self, learning_rate: float = LEARNING_RATE) -> None:
        self._learning_rate = learning_rate
        self._mean: np.ndarray | float = 0.0
        self._square: np.ndarray | float = 0.0
        self._updates = 0

    @insight.trace_op("grpo.update_epoch")
    def update(self, policy: Policy, batch: TrainingBatch) -> tuple[Policy, UpdateStats]:
        """Return an improved policy of the same version, and statistics of the pass."""
        every = policy.log_probs(batch.features, batch.may_call)
        rows = np.arange(len(batch.tokens))
        log_ratio = every[rows, batch.tokens] - batch.log_probs
        ratio = np.exp(log_ratio)
        # The samples come from older weights: the ratio corrects for that, and the clip bounds the correction.
        clipped = np.clip(ratio, 1 - CLIP, 1 + CLIP)
        objective = np.minimum(ratio * batch.advantages, clipped * batch.advantages)
        active = ratio * batch.advantages <= clipped * batch.advantages

        probabilities = np.exp(every)
        scores = -probabilities
        scores[rows, batch.tokens] += 1.0
        scale = (active * ratio * batch.advantages)[:, None]
        gradient = batch.features.T @ (scores * scale) / len(rows)
        stats = UpdateStats(
            loss=float(-objective.mean()),
            kl=float((ratio - 1 - log_ratio).mean()),
            entropy=float(-(probabilities * every).sum(axis=1).mean()),
            clip_fraction=float(1 - active.mean()),
            grad_norm=float(np.linalg.norm(gradient)),
        )
        return Policy(policy.weights + self._adam(gradient), policy.version), stats

    def _adam(self, gradient: np.ndarray) -> np.ndarray:
        self._updates += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.99 * self._square + 0.01 * gradient**2
        mean = self._mean / (1 - 0.9**self._updates)
        square = self._square / (1 - 0.99**self._updates)
        return np.asarray(self._learning_rate * mean / (np.sqrt(square) + 1e-8))
