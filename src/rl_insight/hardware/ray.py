"""All nodes of a Ray cluster, through the metrics pages that Ray's agents serve."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from rl_insight.hardware.base import Reading, Source
from rl_insight.hardware.exporter import PageReadings, down
from rl_insight.hardware.exposition import SeriesReader
from rl_insight.hardware.fetch import PageAddress, fetch_all
from rl_insight.schema.exporters import RAY_NODE
from rl_insight.startup import ray_is_initialized

logger = logging.getLogger("rl_insight")

_DISCOVERY_INTERVAL_S = 10.0
_AGENT_HINT = (
    "no Ray node serves metrics: the agent that does comes with `pip install 'ray[default]'` on every node. "
    "GPU and host metrics of Ray are not recorded until then."
)


class RayNode(msgspec.Struct, frozen=True):
    """A node that is alive according to Ray."""

    node_id: str
    host: str
    address: str
    metrics_port: int
    is_head: bool = False

    @property
    def target(self) -> PageAddress:
        """The address of its metrics page."""
        return PageAddress(self.address, self.metrics_port)


class RaySource(Source):
    """Reads the page of every node that is alive, and follows nodes that join or leave.

    The agents measure every few seconds: a page that shows the same measurement as before keeps its stamp.

    Args:
        timeout_s: The timeout per page.
        discovery_interval_s: The maximum time to cache the list of nodes; a page that fails invalidates it.
        list_nodes: Lists the nodes that are alive; by default with `ray.nodes()`.
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
        self._series = SeriesReader(RAY_NODE.series)
        self._readers: dict[str, PageReadings] = {}
        """By node id."""

    def is_available(self) -> bool:
        """Return whether Ray is initialized in this process and serves metrics."""
        if self._needs_ray and not ray_is_initialized():
            return False
        try:
            nodes = self._list_nodes()
        except Exception as error:  # noqa: BLE001  # Ray raises anything while it shuts down
            logger.warning("Ray's nodes could not be listed: %r.", error)
            return False
        return self._any_serves(nodes)

    def read(self, stop: threading.Event) -> list[Reading]:
        """Read the pages of all nodes concurrently."""
        gone = self._discover()
        served = [node for node in self._nodes if node.metrics_port > 0]
        pages = fetch_all([node.target for node in served], timeout_s=self._timeout_s, stop=stop)
        readings = [down(node.node_id, node.host) for node in gone]
        for node in self._nodes:
            page = pages.get(node.target)
            if isinstance(page, bytes):
                if node.node_id not in self._readers:
                    self._readers[node.node_id] = PageReadings(self._series, RAY_NODE)
                # Stamps are derived from the values: the page does not include the agent's clock.
                readings.extend(self._readers[node.node_id].read(page, node.node_id, node.host, has_stamp=True))
            elif not stop.is_set():
                readings.append(down(node.node_id, node.host))
                self._discovered = float("-inf")
                if page is not None:
                    where = node.node_id, node.target.address
                    logger.debug("metrics of Ray node %s (%s) were not read: %s.", *where, page)
        return readings

    def close(self) -> None:
        """Drop the cached nodes."""
        self._nodes = []
        self._readers.clear()
        self._discovered = float("-inf")

    def _discover(self) -> list[RayNode]:
        """Update the list of nodes if it is stale; return those that are gone."""
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


def alive_nodes() -> list[RayNode]:
    """List the nodes that are alive: the head first, the others in a fixed order."""
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
