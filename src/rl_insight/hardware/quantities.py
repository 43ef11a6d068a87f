"""Every quantity that a source may report: its name, its unit and its metric."""

from __future__ import annotations

from dataclasses import dataclass, field

from rl_insight.schema.exporters import Kind


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity that can be measured. Its metric is called `<kind>_<name>`.

    >>> Quantity("gpu", "power_watts", "Power drawn").metric
    'gpu_power_watts'
    """

    kind: Kind
    name: str
    documentation: str
    cumulative: bool = False
    """A total since some start: recorded as a counter, without a mean."""
    steady: bool = False
    """Changes rarely: recorded when it does, and once per minute."""

    metric: str = field(init=False)
    """The name of the metric, without the namespace and the `_total` of counters."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", f"{self.kind}_{self.name}")


_ALL = (
    Quantity("gpu", "utilization_ratio", "Fraction of time during which the accelerator was busy, 0 to 1"),
    Quantity(
        "gpu", "memory_busy_ratio", "Fraction of time during which accelerator memory was read or written, 0 to 1"
    ),
    Quantity("gpu", "memory_used_bytes", "Accelerator memory in use"),
    Quantity("gpu", "memory_free_bytes", "Free accelerator memory"),
    Quantity("gpu", "memory_reserved_bytes", "Accelerator memory reserved by the driver and the firmware", steady=True),
    Quantity("gpu", "memory_total_bytes", "Accelerator memory installed", steady=True),
    Quantity("gpu", "power_watts", "Power drawn"),
    Quantity("gpu", "power_limit_watts", "Enforced power limit", steady=True),
    Quantity("gpu", "temperature_celsius", "Temperature of the chip", steady=True),
    Quantity("gpu", "sm_clock_hertz", "Clock of the compute units"),
    Quantity("gpu", "memory_clock_hertz", "Clock of the memory"),
    Quantity("gpu", "memory_temperature_celsius", "Temperature of the memory", steady=True),
    Quantity(
        "gpu", "engine_active_ratio", "Fraction of time during which any compute or graphics engine was active, 0 to 1"
    ),
    Quantity("gpu", "tensor_active_ratio", "Fraction of cycles during which the tensor cores were active, 0 to 1"),
    Quantity("gpu", "last_xid", "Code of the last XID error, 0 for none", steady=True),
    Quantity("gpu", "pcie_received_bytes_per_second", "PCIe traffic to the accelerator"),
    Quantity("gpu", "pcie_sent_bytes_per_second", "PCIe traffic from the accelerator"),
    Quantity("gpu", "nvlink_received_bytes", "NVLink data received", cumulative=True),
    Quantity("gpu", "nvlink_sent_bytes", "NVLink data sent", cumulative=True),
    Quantity("gpu", "pcie_replays", "PCIe transfers that were retried", cumulative=True),
    Quantity("gpu", "correctable_remapped_rows", "Memory rows remapped after correctable errors", steady=True),
    Quantity("gpu", "uncorrectable_remapped_rows", "Memory rows remapped after uncorrectable errors", steady=True),
    Quantity("gpu", "row_remap_failure", "1 if remapping a faulty memory row failed", steady=True),
    Quantity("gpu", "energy_joules", "Energy consumed", cumulative=True),
    Quantity("gpu_process", "memory_used_bytes", "Accelerator memory used by a process"),
    Quantity("node", "up", "1 if the node responds, 0 if it does not", steady=True),
    Quantity("node", "cpu_utilization_ratio", "Fraction of all cores that is busy, 0 to 1"),
    Quantity("node", "cpu_cores", "Logical cores", steady=True),
    Quantity("node", "memory_used_bytes", "RAM in use"),
    Quantity("node", "memory_total_bytes", "RAM installed, or the container limit that Ray reports", steady=True),
    Quantity("node", "swap_used_bytes", "Swap in use"),
    Quantity("node", "swap_total_bytes", "Swap space in total", steady=True),
    Quantity("node", "disk_used_bytes", "Disk space in use"),
    Quantity("node", "disk_total_bytes", "Disk space in total", steady=True),
    Quantity("node", "disk_read_bytes", "Data read from disks", cumulative=True),
    Quantity("node", "disk_written_bytes", "Data written to disks", cumulative=True),
    Quantity("node", "network_received_bytes", "Network data received, without loopback", cumulative=True),
    Quantity("node", "network_sent_bytes", "Network data sent, without loopback", cumulative=True),
    Quantity("node", "cgroup_memory_used_bytes", "RAM used by this process's control group"),
    Quantity("node", "cgroup_memory_limit_bytes", "RAM limit of this process's control group", steady=True),
    Quantity("node", "cgroup_cpu_limit_cores", "CPU limit of this process's control group", steady=True),
    Quantity("process", "resident_memory_bytes", "RAM used by this process"),
    Quantity("process", "threads", "Threads of this process"),
    Quantity("process", "cpu_utilization_ratio", "CPU usage of this process in cores"),
)

QUANTITIES: dict[tuple[str, str], Quantity] = {(quantity.kind, quantity.name): quantity for quantity in _ALL}
"""By kind and name."""
