"""What a hardware source is, and what it returns."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Literal

import msgspec

Kind = Literal["gpu", "gpu_process", "node", "process"]


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What one device, node or process showed at one moment.

    >>> Reading(node="a1", host="gpu-1", kind="gpu", index="0", values={"utilization_ratio": 0.31}).values
    {'utilization_ratio': 0.31}
    """

    node: str
    """The node's id: Ray's own, else the name of the host."""
    host: str
    """The name of the machine, as processes record it."""
    kind: Kind
    index: str = ""
    """The accelerator's number on its node; `0:1` is slice 1 of a partitioned GPU 0. Empty for nodes and processes."""
    uuid: str = ""
    model: str = ""
    pid: int | None = None
    """The process, for the kinds `process` and `gpu_process`."""
    values: dict[str, float] = {}
    """Quantities by their names in `quantities.QUANTITIES`, in base units. What is unknown is left out."""
    stamp: int = 0
    """Names the measurement behind the values: two readings of one device with the same stamp are the same
    measurement, shown twice. 0: each reading is a separate measurement."""

    @property
    def key(self) -> tuple[str, str, str, int | None]:
        """What the reading is about."""
        return (self.node, self.kind, self.index, self.pid)


class Source(ABC):
    """Reads hardware of one kind, of one node or of many. A `HardwareMonitor` calls it from a dedicated thread.

    - `read` MUST return what it could learn within its own time limit, and soon after `stop` is set. A part that does
      not answer MUST NOT spoil the others: it is left out, and a node that does not answer is reported as `up` 0.
    - A value that is unknown MUST be left out. It MUST NOT be given as 0, NaN or an infinity.
    - Values MUST be in base units and named as in `quantities.QUANTITIES`. Cumulative quantities are given as the total
      that the hardware shows; the monitor counts the growth.
    - Readings of one device MUST keep their `node`, `kind`, `index` and `pid` over time, and those of one `read` MUST
      be distinct.
    - `read` MAY raise when nothing at all can be read; the monitor logs that once and asks again next time.
    - A source MUST NOT import a library, open a connection or start a thread before `is_available` or `read`.
    - `close` MUST be idempotent; `read` after `close` MUST work again.
    """

    name: str
    """Stands in the label `source` of what is recorded."""

    @abstractmethod
    def is_available(self) -> bool:
        """Return whether there is anything to watch here; MUST NOT raise."""

    @abstractmethod
    def read(self, stop: threading.Event) -> list[Reading]:
        """Read everything once."""

    def close(self) -> None:
        """Release what `read` opened."""
