"""Values for trackers: step means as a flat dictionary with the usual keys, and throughput."""

from __future__ import annotations

from collections.abc import Iterable

from rl_insight.hardware.means import StepMean

GIB = 1024**3

SKYRL_KEYS = {
    ("gpu", "utilization_ratio"): ("util", 100.0),
    ("gpu", "memory_used_bytes"): ("mem_used_gb", 1 / GIB),
    ("node", "memory_used_bytes"): ("cpu_ram_used_gb", 1 / GIB),
}
"""The key of each quantity and its conversion factor, to percent or to gigabytes of 1024³ bytes."""

NEMO_KEYS = {
    ("gpu", "utilization_ratio"): ("util", 100.0),
    ("gpu", "memory_used_bytes"): ("mem_gb", 1 / GIB),
    ("node", "memory_used_bytes"): ("mem_gb", 1 / GIB),
    ("node", "memory_total_bytes"): ("mem_total_gb", 1 / GIB),
}
"""NeMo-RL's keys; it has no means over the devices."""

MORE_KEYS = {
    **SKYRL_KEYS,
    ("gpu", "power_watts"): ("power_w", 1.0),
    ("gpu", "temperature_celsius"): ("temperature_c", 1.0),
    ("node", "cpu_utilization_ratio"): ("cpu_util", 100.0),
}


def tracker_values(
    means: Iterable[StepMean],
    keys: dict[tuple[str, str], tuple[str, float]] = MORE_KEYS,
    *,
    prefix: str = "ray",
    has_averages: bool = True,
) -> dict[str, float]:
    """Return one value per device and, with averages, the mean of each quantity over the devices.

    >>> mean = StepMean(0, "a1", "gpu-1", "gpu", "3", None, "utilization_ratio", 0.31)
    >>> tracker_values([mean])
    {'ray/node.0.gpu.3.util': 31.0, 'ray/gpu.util.avg': 31.0}
    """
    values: dict[str, float] = {}
    groups: dict[str, list[float]] = {}
    for mean in means:
        if (mean.kind, mean.quantity) not in keys:
            continue
        key, factor = keys[mean.kind, mean.quantity]
        device = f"node.{mean.node_index}"
        average = f"{key}.avg"
        if mean.kind == "gpu":
            device += f".gpu.{mean.index}"
            average = f"gpu.{key}.avg"
        value = mean.mean * factor
        values[f"{prefix}/{device}.{key}"] = value
        if has_averages:
            groups.setdefault(f"{prefix}/{average}", []).append(value)
    return values | {key: sum(group) / len(group) for key, group in groups.items()}


def tokens_per_second_per_gpu(tokens: float, seconds: float, gpus: float) -> float | None:
    """Return the throughput per GPU; None if no time passed or no GPUs took part.

    For an RL step, use the time spent training and the GPUs of the policy: the rollout and the GPUs of inference
    engines, critics and reward models do not count. For a supervised step, use the entire step and all GPUs.

    >>> tokens_per_second_per_gpu(1_000_000, 50.0, 8)
    2500.0
    >>> tokens_per_second_per_gpu(1_000_000, 50.0, 0) is None
    True
    """
    if seconds <= 0 or gpus <= 0:
        return None
    return tokens / (seconds * gpus)
