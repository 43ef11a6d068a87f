"""SkyRL's Ray GPU monitor, with the same keys.

>>> monitor = RayGpuMonitor(collection_interval=5.0)
>>> monitor.start()  # doctest: +SKIP
>>> tracker.log(monitor.flush(), step=step)  # doctest: +SKIP
>>> monitor.stop()
"""

from __future__ import annotations

from rl_insight.hardware.monitor import HardwareMonitor
from rl_insight.hardware.ray import RaySource
from rl_insight.hardware.tracker_keys import PRODUCT_KEYS, tracker_values

_MAX_FLUSH_WAIT_S = 1.0


class RayGpuMonitor:
    """Means of GPU utilisation, GPU memory and host memory of every Ray node, step by step.

    Nodes that join or leave are followed, `stop` returns at once, and a step that is shorter than the interval gets a
    reading of its own. What is read is also recorded in the run.

    Args:
        collection_interval: Seconds between two readings.
        request_timeout_s: For the metrics page of each node.
    """

    def __init__(self, collection_interval: float = 5.0, request_timeout_s: float = 3.0) -> None:
        self._source = RaySource(timeout_s=request_timeout_s)
        self._flush_wait_s = min(request_timeout_s, _MAX_FLUSH_WAIT_S)
        self._monitor = HardwareMonitor(collection_interval, [self._source])

    def start(self) -> None:
        """Start collecting; does nothing while it runs, and warns when there is nothing to watch."""
        self._monitor.start()

    def flush(self) -> dict[str, float]:
        """Return the means since the last flush and start over.

        The keys are `ray/node.<i>.gpu.<g>.util` (percent), `ray/node.<i>.gpu.<g>.mem_used_gb`,
        `ray/node.<i>.cpu_ram_used_gb`, and the plain means over the devices `ray/gpu.util.avg`,
        `ray/gpu.mem_used_gb.avg` and `ray/cpu_ram_used_gb.avg`. What is unknown is left out.
        """
        return tracker_values(self._monitor.drain(self._flush_wait_s), PRODUCT_KEYS)

    def stop(self) -> None:
        """Stop collecting, at once; can be called again."""
        self._monitor.stop()
