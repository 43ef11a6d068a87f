"""Every quantity that a source may report: its name, its unit and the metric it becomes."""

from __future__ import annotations

from dataclasses import dataclass, field

from rl_insight.hardware.base import Kind


@dataclass(frozen=True, slots=True)
class Quantity:
    """One thing that can be measured. Its metric is called `<kind>_<name>`.

    >>> Quantity("gpu", "power_watts", "Power drawn").metric
    'gpu_power_watts'
    """

    kind: Kind
    name: str
    documentation: str
    cumulative: bool = False
    """A total since some start: recorded as a counter, with no mean."""
    steady: bool = False
    """Seldom changes: recorded when it does, and once a minute."""

    metric: str = field(init=False)
    """The metric's name, without the namespace and a counter's `_total`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", f"{self.kind}_{self.name}")


_ALL = (
    Quantity("gpu", "utilization_ratio", "Share of time in which the accelerator was busy, 0 to 1"),
    Quantity("gpu", "memory_busy_ratio", "Share of time in which its memory was read or written, 0 to 1"),
    Quantity("gpu", "memory_used_bytes", "Accelerator memory in use"),
    Quantity("gpu", "memory_free_bytes", "Accelerator memory that is free"),
    Quantity("gpu", "memory_reserved_bytes", "Accelerator memory that the driver and the firmware keep", steady=True),
    Quantity("gpu", "memory_total_bytes", "Accelerator memory installed", steady=True),
    Quantity("gpu", "power_watts", "Power drawn"),
    Quantity("gpu", "power_limit_watts", "Power limit in force", steady=True),
    Quantity("gpu", "temperature_celsius", "Temperature of the chip", steady=True),
    Quantity("gpu", "sm_clock_hertz", "Clock of the compute units"),
    Quantity("gpu", "memory_clock_hertz", "Clock of the memory"),
    Quantity("gpu", "memory_temperature_celsius", "Temperature of the memory", steady=True),
    Quantity("gpu", "engine_active_ratio", "Share of time in which any compute or graphics engine was active, 0 to 1"),
    Quantity("gpu", "tensor_active_ratio", "Share of cycles in which the tensor cores were active, 0 to 1"),
    Quantity("gpu", "last_xid", "Code of the last XID error, 0 for none", steady=True),
    Quantity("gpu", "pcie_received_bytes_per_second", "PCIe traffic to the accelerator"),
    Quantity("gpu", "pcie_sent_bytes_per_second", "PCIe traffic from the accelerator"),
    Quantity("gpu", "nvlink_received_bytes", "NVLink data received", cumulative=True),
    Quantity("gpu", "nvlink_sent_bytes", "NVLink data sent", cumulative=True),
    Quantity("gpu", "pcie_replays", "PCIe transfers that had to be repeated", cumulative=True),
    Quantity("gpu", "correctable_remapped_rows", "Memory rows replaced after correctable errors", steady=True),
    Quantity("gpu", "uncorrectable_remapped_rows", "Memory rows replaced after uncorrectable errors", steady=True),
    Quantity("gpu", "row_remap_failure", "1 when a faulty memory row could not be replaced", steady=True),
    Quantity("gpu", "energy_joules", "Energy used", cumulative=True),
    Quantity("gpu_process", "memory_used_bytes", "Accelerator memory that a process uses"),
    Quantity("node", "up", "1 while the node answers, 0 when it does not", steady=True),
    Quantity("node", "cpu_utilization_ratio", "Share of all cores that is busy, 0 to 1"),
    Quantity("node", "cpu_cores", "Logical cores", steady=True),
    Quantity("node", "memory_used_bytes", "RAM in use"),
    Quantity("node", "memory_total_bytes", "RAM installed, or the container's limit as Ray sees it", steady=True),
    Quantity("node", "swap_used_bytes", "Swap in use"),
    Quantity("node", "swap_total_bytes", "Swap there is", steady=True),
    Quantity("node", "disk_used_bytes", "Disk space in use"),
    Quantity("node", "disk_total_bytes", "Disk space there is", steady=True),
    Quantity("node", "disk_read_bytes", "Data read from disks", cumulative=True),
    Quantity("node", "disk_written_bytes", "Data written to disks", cumulative=True),
    Quantity("node", "network_received_bytes", "Data received, loopback left out", cumulative=True),
    Quantity("node", "network_sent_bytes", "Data sent, loopback left out", cumulative=True),
    Quantity("node", "cgroup_memory_used_bytes", "RAM that this process's control group uses"),
    Quantity("node", "cgroup_memory_limit_bytes", "RAM limit of this process's control group", steady=True),
    Quantity("node", "cgroup_cpu_limit_cores", "CPU limit of this process's control group", steady=True),
    Quantity("process", "resident_memory_bytes", "RAM that this process uses"),
    Quantity("process", "threads", "Threads of this process"),
    Quantity("process", "cpu_utilization_ratio", "Cores that this process keeps busy, 1 is one core"),
)

QUANTITIES: dict[tuple[str, str], Quantity] = {(quantity.kind, quantity.name): quantity for quantity in _ALL}
"""By kind and name."""
