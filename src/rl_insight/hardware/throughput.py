"""Tokens per second and GPU, the same way in every trainer."""

from __future__ import annotations


def tokens_per_second_per_gpu(tokens: float, seconds: float, gpus: float) -> float | None:
    """Return the throughput of one GPU; None where it has no meaning: no time passed, or no GPUs took part.

    For an RL step, take the time spent training and the GPUs that hold the policy: the rollout and the GPUs of
    inference engines, critics and reward models do not count. For a supervised step, take the whole step and all GPUs.

    >>> tokens_per_second_per_gpu(1_000_000, 50.0, 8)
    2500.0
    >>> tokens_per_second_per_gpu(1_000_000, 50.0, 0) is None
    True
    """
    if seconds <= 0 or gpus <= 0:
        return None
    return tokens / (seconds * gpus)
