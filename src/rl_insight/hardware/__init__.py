"""Metrics of accelerators and hosts during a run.

>>> import rl_insight.hardware as hardware
>>> hardware.tokens_per_second_per_gpu(1_000_000, 50.0, 8)
2500.0
"""

from __future__ import annotations

from collections.abc import Sequence

from rl_insight.hardware.base import Reading, Source
from rl_insight.hardware.exporter import ExporterSource
from rl_insight.hardware.host import HostSource
from rl_insight.hardware.means import StepMean
from rl_insight.hardware.monitor import HardwareMonitor
from rl_insight.hardware.nvml import NvmlSource
from rl_insight.hardware.ray import RaySource
from rl_insight.hardware.tracker_keys import tokens_per_second_per_gpu
from rl_insight.producer import Producer

__all__ = [
    "ExporterSource",
    "HardwareMonitor",
    "HostSource",
    "NvmlSource",
    "RaySource",
    "Reading",
    "Source",
    "StepMean",
    "monitor_hardware",
    "tokens_per_second_per_gpu",
]


def monitor_hardware(
    interval_s: float = 5.0,
    sources: str | Sequence[Source | str] = "auto",
    monitor: Producer | None = None,
) -> HardwareMonitor:
    """Start recording hardware metrics of the run; return the running monitor.

    With Ray initialized, one process monitors all nodes: call it in the driver. Without Ray, call it in every process;
    the first one on each machine monitors the GPUs and the host.

    >>> hardware = monitor_hardware(interval_s=5.0)  # doctest: +SKIP
    >>> tracker.log(hardware.flush(), step=step)  # doctest: +SKIP

    Args:
        interval_s: Seconds between readings.
        sources: `auto` (Ray if it is initialized, else NVML and the host), or sources and names of sources.
        monitor: Records the readings; by default the default monitor.
    """
    return HardwareMonitor(interval_s, sources, monitor).start()
