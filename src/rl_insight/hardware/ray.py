"""All nodes of a Ray cluster, through the metrics pages that Ray's own agents serve."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, NamedTuple

import msgspec

from rl_insight.hardware.base import Reading, Source
from rl_insight.hardware.exposition import PageReader, Sample, SeriesReader
from rl_insight.hardware.fetch import PageAddress, fetch_all
from rl_insight.startup import ray_is_initialized

logger = logging.getLogger("rl_insight")

_MIB = 1024.0**2
_AVAILABLE = "memory_available_bytes"
"""Not a quantity of ours: it makes the total."""
_GPU_SERIES = {
    "ray_node_gpus_utilization": ("utilization_ratio", 0.01),
    "ray_node_gram_used": ("memory_used_bytes", _MIB),
    "ray_node_gram_available": (_AVAILABLE, _MIB),
    "ray_node_gpu_power_milliwatts": ("power_watts", 0.001),
    "ray_node_gpu_temperature_celsius": ("temperature_celsius", 1.0),
}
_NODE_SERIES = {
    "ray_node_mem_used": ("memory_used_bytes", 1.0),
    "ray_node_mem_total": ("memory_total_bytes", 1.0),
    "ray_node_cpu_utilization": ("cpu_utilization_ratio", 0.01),
    "ray_node_cpu_count": ("cpu_cores", 1.0),
}
_RESTLESS_SERIES = ("ray_node_network_sent", "ray_node_network_received", "ray_node_disk_io_write")
"""Totals that grow all the time: they tell one measurement of the agent from the next."""
_DISCOVERY_INTERVAL_S = 10.0
_AGENT_HINT = (
    "no Ray node serves metrics: the agent that does comes with `pip install 'ray[default]'` on every node. "
    "GPU and host metrics of Ray are not recorded until then."
)


class RayNode(msgspec.Struct, frozen=True):
    """A node that Ray says is alive."""

    node_id: str
    host: str
    address: str
    metrics_port: int
    is_head: bool = False

    @property
    def target(self) -> PageAddress:
        """Where its metrics page is."""
        return PageAddress(self.address, self.metrics_port)


class RaySource(Source):
    """Reads every alive node's page; nodes that come and go are noticed while it runs.

    The agents measure every few seconds: a page that shows the same measurement as last time keeps its stamp.

    Args:
        timeout_s: For each page.
        discovery_interval_s: The longest time for which the list of nodes is believed; a page that fails cuts it short.
        list_nodes: Lists the alive nodes; `ray.nodes()` when left out.
    """

    name = "ray"

    def __init__(
        self,
        timeout_s: float = 3.0,
        *,
        discovery_interval_s: float = _DISCOVERY_INTERVAL_S,
        list_nodes: Callable[[], list[RayNode]] | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._discovery_interval_s = discovery_interval_s
        self._list_nodes = list_nodes or alive_nodes
        self._needs_ray = list_nodes is None
        self._nodes: list[RayNode] = []
        self._discovered = float("-inf")
        self._warned = False
        self._series = SeriesReader((*_GPU_SERIES, *_NODE_SERIES, *_RESTLESS_SERIES))
        self._readers: dict[str, PageReader[_Meaning]] = {}
        """By node id: each node's page has its lines."""

    def is_available(self) -> bool:
        """Return whether Ray is initialized in this process and serves metrics."""
        if self._needs_ray and not ray_is_initialized():
            return False
        try:
            nodes = self._list_nodes()
        except Exception as error:  # noqa: BLE001  # Ray raises what it likes while it shuts down
            logger.warning("Ray's nodes could not be listed: %r.", error)
            return False
        return self._any_serves(nodes)

    def read(self, stop: threading.Event) -> list[Reading]:
        """Read the pages of all alive nodes side by side."""
        gone = self._discover()
        served = [node for node in self._nodes if node.metrics_port > 0]
        pages = fetch_all([node.target for node in served], timeout_s=self._timeout_s, stop=stop)
        readings = [_down(node) for node in gone]
        for node in self._nodes:
            page = pages.get(node.target)
            if isinstance(page, bytes):
                readings.extend(self._node_readings(node, page))
            elif not stop.is_set():
                readings.append(_down(node))
                self._discovered = float("-inf")
                if page is not None:
                    where = node.node_id, node.target.address
                    logger.debug("metrics of Ray node %s (%s) were not read: %s.", *where, page)
        return readings

    def close(self) -> None:
        """Forget the nodes."""
        self._nodes = []
        self._readers.clear()
        self._discovered = float("-inf")

    def _discover(self) -> list[RayNode]:
        """Bring the list of nodes up to date if it is old; returns those that are gone."""
        now = time.monotonic()
        if now - self._discovered < self._discovery_interval_s:
            return []
        if self._needs_ray and not ray_is_initialized():
            gone, self._nodes = self._nodes, []
            return gone
        before = {node.node_id: node for node in self._nodes}
        self._nodes = self._list_nodes()
        self._discovered = now
        self._any_serves(self._nodes)
        for node in self._nodes:
            before.pop(node.node_id, None)
        for node_id in before:
            self._readers.pop(node_id, None)
        return list(before.values())

    def _any_serves(self, nodes: Iterable[RayNode]) -> bool:
        if any(node.metrics_port > 0 for node in nodes):
            return True
        if nodes and not self._warned:
            self._warned = True
            logger.warning(_AGENT_HINT)
        return False

    def _node_readings(self, node: RayNode, page: bytes) -> list[Reading]:
        reader = self._readers.get(node.node_id)
        if reader is None:
            reader = self._readers[node.node_id] = PageReader(self._series, _meaning)
        found = reader.read(page)
        # Made of the values: the agent's own clock does not show on the page.
        stamp = hash(tuple([value for _, value in found])) or 1
        values = {"up": 1.0}
        gpus: dict[str, tuple[dict[str, str], dict[str, float]]] = {}
        for (index, quantity, factor, labels), value in found:
            if not quantity or not isfinite(value):
                continue
            if index is None:
                values[quantity] = value * factor
                continue
            gpu = gpus.get(index)
            if gpu is None:
                gpu = gpus[index] = (labels, {})
            gpu[1][quantity] = value * factor
        readings = [Reading(node=node.node_id, host=node.host, kind="node", values=values, stamp=stamp)]
        readings.extend(_gpu_reading(node, index, *gpus[index], stamp) for index in sorted(gpus, key=_by_number))
        return readings


class _Meaning(NamedTuple):
    """What a series of a node's page tells."""

    gpu: str | None
    """Its index; None: it is about the node."""
    quantity: str
    """Empty: nothing, besides that time has passed."""
    factor: float
    labels: dict[str, str]


def _meaning(sample: Sample) -> _Meaning:
    if (series := _GPU_SERIES.get(sample.name)) is not None:
        return _Meaning(sample.labels.get("GpuIndex") or "0", *series, sample.labels)
    return _Meaning(None, *_NODE_SERIES.get(sample.name, ("", 1.0)), sample.labels)


def _gpu_reading(node: RayNode, index: str, labels: dict[str, str], values: dict[str, float], stamp: int) -> Reading:
    available = values.pop(_AVAILABLE, None)
    if available is not None and "memory_used_bytes" in values:
        values["memory_total_bytes"] = values["memory_used_bytes"] + available
    return Reading(
        node=node.node_id,
        host=node.host,
        kind="gpu",
        index=index,
        uuid=labels.get("GpuUuid", ""),
        model=labels.get("GpuDeviceName", ""),
        values=values,
        stamp=stamp,
    )


def alive_nodes() -> list[RayNode]:
    """List the nodes that Ray says are alive: the head first, the others in a fixed order."""
    import ray

    nodes = [_ray_node(node) for node in ray.nodes() if node.get("Alive")]
    return sorted(nodes, key=lambda node: (not node.is_head, node.address, node.node_id))


def _ray_node(node: Mapping[str, Any]) -> RayNode:
    return RayNode(
        node_id=str(node["NodeID"]),
        host=str(node.get("NodeManagerHostname") or node.get("NodeManagerAddress") or "").split(".")[0],
        address=str(node.get("NodeManagerAddress") or ""),
        metrics_port=int(node.get("MetricsExportPort") or 0),
        is_head="node:__internal_head__" in (node.get("Resources") or {}),
    )


def _by_number(index: str) -> tuple[int, str]:
    return (int(index) if index.isdecimal() else sys.maxsize, index)


def _down(node: RayNode) -> Reading:
    return Reading(node=node.node_id, host=node.host, kind="node", values={"up": 0.0})
