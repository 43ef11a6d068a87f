"""The policy: a linear softmax that writes an answer token by token, and may call the calculator first.

It represents a language model. Its features are those of a pretrained model: the kind of question, the
digits of a sum (but not of a product), and the digits that the tool returned. It has to learn how to use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from examples.async_grpo.task import ANSWER_LENGTH, KINDS, Prompt

CALL_TOOL = 10
"""The token that calls the calculator; the tokens 0 to 9 are digits."""
TOKENS = 11
FEATURES = len(KINDS) + ANSWER_LENGTH + 3 + 10


@dataclass(frozen=True, slots=True)
class Context:
    """What the policy sees when it generates the next token."""

    prompt: Prompt
    position: int = 0
    """Digits generated so far."""
    tool_called: bool = False
    tool_result: tuple[int, ...] | None = None
    """None if the tool was not called, or failed."""

    @property
    def may_call(self) -> bool:
        """The tool can be called once, before the answer begins."""
        return self.position == 0 and not self.tool_called

    def features(self) -> np.ndarray:
        """Return the context as numbers: a row of one-hot pieces."""
        kind = np.eye(len(KINDS))[KINDS.index(self.prompt.kind)]
        position = np.eye(ANSWER_LENGTH)[self.position]
        tool = np.eye(3)[0 if not self.tool_called else 1 if self.tool_result is None else 2]
        known = self.prompt.answer if self.prompt.kind == "add" else self.tool_result
        digit = np.zeros(10) if known is None else np.eye(10)[known[self.position]]
        return np.concatenate([kind, position, tool, digit])


class Choice(NamedTuple):
    """One generated token, with everything that training needs."""

    token: int
    log_prob: float
    features: np.ndarray
    may_call: bool


def initial_weights() -> np.ndarray:
    """Return initial weights: they call the tool half of the time, and generate random digits."""
    weights = np.zeros((FEATURES, TOKENS))
    weights[: len(KINDS), CALL_TOOL] = np.log(10)
    return weights


class Policy:
    """Weights with a version. A policy is immutable: training creates a new one."""

    __slots__ = ("version", "weights")

    def __init__(self, weights: np.ndarray | None = None, version: int = 0) -> None:
        self.weights = initial_weights() if weights is None else weights
        self.version = version

    def log_probs(self, features: np.ndarray, may_call: np.ndarray) -> np.ndarray:
        """Return the log-probability of every token, for many contexts at once (one per row)."""
        logits = features @ self.weights
        logits[~may_call, CALL_TOOL] = -1e9  # the tool cannot be called there
        logits -= logits.max(axis=1, keepdims=True)
        return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))

    def choose(self, context: Context, rng: np.random.Generator) -> Choice:
        """Generate one token."""
        features = context.features()
        log_probs = self.log_probs(features[None], np.array([context.may_call]))[0]
        token = int(rng.choice(TOKENS, p=np.exp(log_probs)))
        return Choice(token, float(log_probs[token]), features, context.may_call)
