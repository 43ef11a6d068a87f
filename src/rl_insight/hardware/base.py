"""The interface of hardware sources, and their readings."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

import msgspec

from rl_insight.schema.exporters import Kind


class Reading(msgspec.Struct, frozen=True, gc=False):
    """The values of one device, node or process at one time.

    >>> Reading(node="a1", host="gpu-1", kind="gpu", index="0", values={"utilization_ratio": 0.31}).values
    {'utilization_ratio': 0.31}
    """

    node: str
    """The node's id: Ray's id, else the host name."""
    host: str
    """The host name, as processes record it."""
    kind: Kind
    index: str = ""
    """The accelerator's number on its node; `0:1` is slice 1 of a partitioned GPU 0. Empty for nodes and processes."""
    uuid: str = ""
    model: str = ""
    pid: int | None = None
    """The process, for the kinds `process` and `gpu_process`."""
    values: dict[str, float] = {}
    """Quantities by their names in `quantities.QUANTITIES`, in base units. Unknown ones are left out."""
    stamp: int = 0
    """Identifies the measurement: two readings of one device with the same stamp are the same measurement, read twice.
    0: each reading is a separate measurement."""

    @property
    def key(self) -> tuple[str, str, str, int | None]:
        """Identifies the device."""
        return (self.node, self.kind, self.index, self.pid)


class Source(ABC):
    """Reads one kind of hardware on one or more nodes. A `HardwareMonitor` calls it from a dedicated thread.

    - `read` MUST return within its own time limit, and soon after `stop` is set, with the values it has by then. A part
      that does not respond MUST NOT affect the others: it is left out, and a node that does not respond has `up` 0.
    - An unknown value MUST be left out. It MUST NOT be reported as 0, NaN or an infinity.
    - Values MUST be in base units and named as in `quantities.QUANTITIES`. Cumulative quantities are the totals of the
      hardware; the monitor computes the increase.
    - Readings of one device MUST keep their `node`, `kind`, `index` and `pid` over time, and those of one `read` MUST
      differ in them.
    - `read` MAY raise if nothing can be read; the monitor logs that once and retries at the next interval.
    - A source MUST NOT import a library, open a connection or start a thread before `is_available` or `read`.
    - `close` MUST be idempotent; `read` after `close` MUST work again.
    """

    name: str
    """The label `source` of the recorded metrics."""

    @abstractmethod
    def is_available(self) -> bool:
        """Return whether there is anything to monitor here; MUST NOT raise."""

    @abstractmethod
    def read(self, stop: threading.Event) -> list[Reading]:
        """Read everything once."""

    def close(self) -> None:
        """Release the resources that `read` opened."""
