"""SkyRL's Ray GPU monitor with the same keys, or NeMo-RL's.

>>> monitor = RayGpuMonitor(collection_interval=5.0)
>>> monitor.start()  # doctest: +SKIP
>>> tracker.log(monitor.flush(), step=step)  # doctest: +SKIP
>>> monitor.stop()
"""

from __future__ import annotations

import time
from typing import Any, Literal

from rl_insight.hardware.monitor import HardwareMonitor
from rl_insight.hardware.ray import RaySource
from rl_insight.hardware.tracker_keys import NEMO_KEYS, SKYRL_KEYS, tracker_values
from rl_insight.startup import ray_is_initialized

_MAX_FLUSH_WAIT_S = 1.0


class RayGpuMonitor:
    """Means of GPU utilization, GPU memory and host memory of every Ray node for each step.

    It follows nodes that join or leave, `stop` returns at once, and a step that is shorter than the interval also gets
    a reading. Readings are also recorded in the run.

    Args:
        collection_interval: Seconds between readings.
        request_timeout_s: The timeout for the metrics page of each node.
        keys: `skyrl`, or `nemo-rl` for the names that NeMo-RL's logger uses.

    Raises:
        ValueError: `keys` is neither of them.
    """

    def __init__(
        self,
        collection_interval: float = 5.0,
        request_timeout_s: float = 3.0,
        *,
        keys: Literal["skyrl", "nemo-rl"] = "skyrl",
    ) -> None:
        if keys not in ("skyrl", "nemo-rl"):
            raise ValueError(f"keys is {keys!r}: choose 'skyrl' or 'nemo-rl'.")
        self.collection_interval = collection_interval
        self._is_nemo = keys == "nemo-rl"
        self._flush_wait_s = min(request_timeout_s, _MAX_FLUSH_WAIT_S)
        self._monitor = HardwareMonitor(collection_interval, [RaySource(timeout_s=request_timeout_s)])
        self._started = time.monotonic()

    def start(self) -> None:
        """Start collecting; does nothing if it is running, and logs a warning if there is nothing to monitor.

        Raises:
            ValueError: with NeMo-RL's keys, Ray is not initialized.
        """
        if self._is_nemo and not ray_is_initialized():
            raise ValueError("Ray is not initialized. Call ray.init() before the monitor starts.")
        if not self._monitor.is_running:
            self._started = time.monotonic()
        self._monitor.start()

    def flush(self) -> dict[str, Any]:
        """Return the means since the last flush and start over.

        SkyRL's keys are `ray/node.<i>.gpu.<g>.util` (percent), `ray/node.<i>.gpu.<g>.mem_used_gb`,
        `ray/node.<i>.cpu_ram_used_gb`, and the plain means over the devices `ray/gpu.util.avg`,
        `ray/gpu.mem_used_gb.avg` and `ray/cpu_ram_used_gb.avg`.

        NeMo-RL's are `ray/node.<i>.gpu.<g>.util`, `.mem_gb` and `.type` (the device's name), `ray/node.<i>.mem_gb`,
        `ray/node.<i>.mem_total_gb`, and `ray/ray_step`, whole seconds since the start. Unknown values are left out.
        """
        means = self._monitor.drain(self._flush_wait_s)
        if not self._is_nemo:
            return {**tracker_values(means, SKYRL_KEYS)}
        found: dict[str, Any] = {**tracker_values(means, NEMO_KEYS, has_averages=False)}
        models = {(mean.node_index, mean.index): mean.model for mean in means if mean.kind == "gpu" and mean.model}
        found |= {f"ray/node.{node}.gpu.{index}.type": model for (node, index), model in models.items()}
        return {**found, "ray/ray_step": int(time.monotonic() - self._started)} if found else {}

    def stop(self) -> None:
        """Stop collecting at once; idempotent."""
        self._monitor.stop()
