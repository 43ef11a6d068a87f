"""Metrics of this machine and this process, through psutil."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from rl_insight.hardware.base import Reading, Source
from rl_insight.hardware.cgroup import read_cgroup
from rl_insight.recorder.ids import host_name

_SHORTEST_CPU_WINDOW_S = 0.1
"""CPU utilization over a shorter time is noise."""


class HostSource(Source):
    """CPU, RAM, swap, disk, network and limits of this machine, and the usage of this process.

    Args:
        process_only: Leave out the machine, which another process monitors.
        disk_path: The file system whose space is reported.
    """

    name = "host"

    def __init__(self, *, process_only: bool = False, disk_path: str = "/") -> None:
        self._process_only = process_only
        self._disk_path = disk_path
        self._psutil: Any = None
        self._process: Any = None
        self._cpu_read_at = 0.0

    def is_available(self) -> bool:
        """Return whether psutil is installed."""
        try:
            importlib.import_module("psutil")
        except ImportError:
            return False
        return True

    def read(self, stop: threading.Event) -> list[Reading]:
        """Read the machine and the process."""
        del stop  # nothing here waits
        self._open()
        host = host_name()
        now = time.monotonic()
        cpu_is_known = now - self._cpu_read_at >= _SHORTEST_CPU_WINDOW_S
        if cpu_is_known:
            self._cpu_read_at = now
        readings = [
            Reading(
                node=host, host=host, kind="process", pid=os.getpid(), values=self._process_values(cpu=cpu_is_known)
            )
        ]
        if not self._process_only:
            readings.append(Reading(node=host, host=host, kind="node", values=self._node_values(cpu=cpu_is_known)))
        return readings

    def close(self) -> None:
        """Drop the process handle."""
        self._process = None

    def _open(self) -> None:
        if self._process is not None and self._process.pid == os.getpid():
            return
        self._psutil = importlib.import_module("psutil")
        self._process = self._psutil.Process()
        # The first CPU utilization would be since boot, or 0: this call only sets the starting point.
        self._psutil.cpu_percent(None)
        self._process.cpu_percent(None)
        self._cpu_read_at = time.monotonic()

    def _process_values(self, *, cpu: bool) -> dict[str, float]:
        process = self._process
        with process.oneshot():
            return _known(
                lambda: {"resident_memory_bytes": process.memory_info().rss},
                lambda: {"threads": process.num_threads()},
                lambda: {"cpu_utilization_ratio": process.cpu_percent(None) / 100} if cpu else {},
            )

    def _node_values(self, *, cpu: bool) -> dict[str, float]:
        psutil = self._psutil
        values = {"up": 1.0} | _known(
            lambda: {"cpu_utilization_ratio": psutil.cpu_percent(None) / 100} if cpu else {},
            lambda: {"cpu_cores": psutil.cpu_count()},
            lambda: _space("memory", psutil.virtual_memory()),
            lambda: _space("swap", psutil.swap_memory()),
            lambda: _space("disk", psutil.disk_usage(self._disk_path)),
            lambda: _disk_traffic(psutil.disk_io_counters()),
            self._network,
        )
        if values.get("swap_total_bytes") == 0:  # without swap, its usage is meaningless
            del values["swap_total_bytes"], values["swap_used_bytes"]
        return values | read_cgroup()

    def _network(self) -> dict[str, float]:
        cards = [card for name, card in self._psutil.net_io_counters(pernic=True).items() if name != "lo"]
        if not cards:
            return {}
        received, sent = sum(card.bytes_recv for card in cards), sum(card.bytes_sent for card in cards)
        return {"network_received_bytes": received, "network_sent_bytes": sent}


def _space(name: str, found: Any) -> dict[str, float]:
    """Return used and total space; caches count as free if the system reports the available space."""
    available = getattr(found, "available", None)
    used = found.used if available is None else found.total - available
    return {f"{name}_used_bytes": used, f"{name}_total_bytes": found.total}


def _disk_traffic(found: Any) -> dict[str, float]:
    return {"disk_read_bytes": found.read_bytes, "disk_written_bytes": found.write_bytes}


def _known(*reads: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return the merged results of calls, without those that the system does not support."""
    values: dict[str, float] = {}
    for read in reads:
        try:
            values |= {name: float(value) for name, value in read().items()}
        except Exception:  # noqa: BLE001, S112  # psutil raises various errors for unreadable system files
            continue
    return values
