"""Tokens per second and GPU, the same way in every trainer."""

from __future__ import annotations


def tokens_per_second_per_gpu(tokens: float, seconds: float, gpus: float) -> float | None:
    """Return the throughput of one GPU; None where it has no meaning: no time passed, or no GPUs took part.

    >>> tokens_per_second_per_gpu(1_000_000, 50.0, 8)
    2500.0
    >>> tokens_per_second_per_gpu(1_000_000, 50.0, 0) is None
    True
    """
    if seconds <= 0 or gpus <= 0:
        return None
    return tokens / (seconds * gpus)


def rl_tokens_per_second_per_gpu(tokens: float, train_seconds: float, policy_gpus: float) -> float | None:
    """Return the training throughput of an RL step: over the time spent training, on the GPUs that hold the policy.

    The time of the rollout and the GPUs of inference engines, critics and reward models do not count.
    """
    return tokens_per_second_per_gpu(tokens, train_seconds, policy_gpus)


def sft_tokens_per_second_per_gpu(tokens: float, step_seconds: float, gpus: float) -> float | None:
    """Return the throughput of a supervised step: over the whole step, on all GPUs."""
    return tokens_per_second_per_gpu(tokens, step_seconds, gpus)
