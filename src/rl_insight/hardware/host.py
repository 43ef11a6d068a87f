"""This machine and this process, through psutil."""

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
"""CPU shares over less than this are noise."""


class HostSource(Source):
    """CPU, RAM, swap, disk, network and limits of this machine, and what this process uses of it.

    Args:
        process_only: Leave out the machine: another process watches it.
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
        """Forget the process that was watched."""
        self._process = None

    def _open(self) -> None:
        if self._process is not None and self._process.pid == os.getpid():
            return
        self._psutil = importlib.import_module("psutil")
        self._process = self._psutil.Process()
        # The first CPU share would be that since the start of the machine, or 0: it only sets the starting point.
        self._psutil.cpu_percent(None)
        self._process.cpu_percent(None)
        self._cpu_read_at = time.monotonic()

    def _process_values(self, *, cpu: bool) -> dict[str, float]:
        values: dict[str, float] = {}
        with self._process.oneshot():
            _put(values, "resident_memory_bytes", lambda: self._process.memory_info().rss)
            _put(values, "threads", self._process.num_threads)
            if cpu:
                _put(values, "cpu_utilization_ratio", lambda: self._process.cpu_percent(None) / 100)
        return values

    def _node_values(self, *, cpu: bool) -> dict[str, float]:
        psutil = self._psutil
        values = {"up": 1.0}
        if cpu:
            _put(values, "cpu_utilization_ratio", lambda: psutil.cpu_percent(None) / 100)
        _put(values, "cpu_cores", psutil.cpu_count)
        memory, swap, disk = psutil.virtual_memory, psutil.swap_memory, lambda: psutil.disk_usage(self._disk_path)
        for name, read in (("memory", memory), ("swap", swap), ("disk", disk)):
            _put_all(values, read, {f"{name}_used_bytes": _used, f"{name}_total_bytes": _total})
        if values.get("swap_total_bytes") == 0:  # there is none, so none of it can be in use
            del values["swap_total_bytes"], values["swap_used_bytes"]
        io = psutil.disk_io_counters
        _put_all(
            values, io, {"disk_read_bytes": _attribute("read_bytes"), "disk_written_bytes": _attribute("write_bytes")}
        )
        _put_all(
            values, self._network, {"network_received_bytes": lambda n: n[0], "network_sent_bytes": lambda n: n[1]}
        )
        return values | read_cgroup()

    def _network(self) -> tuple[int, int] | None:
        cards = {name: card for name, card in self._psutil.net_io_counters(pernic=True).items() if name != "lo"}
        if not cards:
            return None
        return sum(card.bytes_recv for card in cards.values()), sum(card.bytes_sent for card in cards.values())


def _attribute(name: str) -> Callable[[Any], float]:
    return lambda found: float(getattr(found, name))


def _total(found: Any) -> float:
    return float(found.total)


def _used(found: Any) -> float:
    """Return what cannot be had: caches can, and count as free where the system tells."""
    available = getattr(found, "available", None)
    return float(found.used if available is None else found.total - available)


def _put(values: dict[str, float], name: str, read: Callable[[], Any]) -> None:
    _put_all(values, read, {name: float})


def _put_all(values: dict[str, float], read: Callable[[], Any], parts: dict[str, Callable[[Any], float]]) -> None:
    """Add what one call tells; nothing where the system does not tell it."""
    try:
        found = read()
    except Exception:  # noqa: BLE001  # psutil raises what the system's files make it raise
        return
    if found is None:
        return
    for name, part in parts.items():
        values[name] = float(part(found))
