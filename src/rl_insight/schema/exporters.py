"""Series of Prometheus exporters that measure accelerators and nodes: their quantities, units and labels.

The hardware monitor reads exporters with these mappings, and queries interpret scraped series with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Kind = Literal["gpu", "gpu_process", "node", "process"]
MIB = 1024.0**2
AVAILABLE = "memory_available_bytes"
"""Not a quantity: added to the memory in use to get the total."""


class ExporterSeries(msgspec.Struct, frozen=True):
    """The quantity that one series of an exporter measures."""

    quantity: str
    """The name of the quantity; see `quantities.QUANTITIES`."""
    factor: float = 1.0
    """Converts to the base unit: 0.01 for percent, 1024² for MiB."""
    kind: Kind = "gpu"


class ExporterMapping(msgspec.Struct, frozen=True):
    """The series of an exporter, and the labels that identify the device."""

    series: Mapping[str, ExporterSeries]
    """By the name of the series in the exporter."""
    index_label: str = "gpu"
    uuid_label: str = ""
    model_label: str = ""
    host_label: str = ""
    """The label that names the machine if one exporter serves several; by default the host of the URL."""

    def with_prefix(self, prefix: str) -> ExporterMapping:
        """Return the same mapping for an exporter whose names start with `prefix`.

        >>> sorted(ExporterMapping({"power": ExporterSeries("power_watts")}).with_prefix("amd_").series)
        ['amd_power']
        """
        return self.with_series({f"{prefix}{name}": series for name, series in self.series.items()}, only=True)

    def with_series(self, series: Mapping[str, ExporterSeries], *, only: bool = False) -> ExporterMapping:
        """Return the same mapping with series added or replaced; with `only`, with only these."""
        return msgspec.structs.replace(self, series=dict(series) if only else {**self.series, **series})


AMD_GPU = ExporterMapping(
    series={
        "gpu_gfx_activity": ExporterSeries("utilization_ratio", 0.01),
        "gpu_used_vram": ExporterSeries("memory_used_bytes", MIB),
        "gpu_total_vram": ExporterSeries("memory_total_bytes", MIB),
        "gpu_package_power": ExporterSeries("power_watts"),
        "gpu_junction_temperature": ExporterSeries("temperature_celsius"),
    },
    index_label="gpu_id",
    uuid_label="gpu_uuid",
    model_label="card_model",
    host_label="hostname",
)
"""AMD's device metrics exporter, port 5000; in some installations, names start with `amd_`."""

ASCEND_NPU = ExporterMapping(
    series={
        "npu_chip_info_utilization": ExporterSeries("utilization_ratio", 0.01),
        "npu_chip_info_hbm_used_memory": ExporterSeries("memory_used_bytes", MIB),
        "npu_chip_info_hbm_total_memory": ExporterSeries("memory_total_bytes", MIB),
        "npu_chip_info_power": ExporterSeries("power_watts"),
        "npu_chip_info_temperature": ExporterSeries("temperature_celsius"),
    },
    index_label="id",
    uuid_label="vdie_id",
    model_label="model_name",
)
"""Huawei's NPU exporter, port 8082."""

NVIDIA_DCGM = ExporterMapping(
    series={
        "DCGM_FI_DEV_GPU_UTIL": ExporterSeries("utilization_ratio", 0.01),
        "DCGM_FI_DEV_FB_USED": ExporterSeries("memory_used_bytes", MIB),
        "DCGM_FI_DEV_FB_FREE": ExporterSeries("memory_free_bytes", MIB),
        "DCGM_FI_DEV_FB_RESERVED": ExporterSeries("memory_reserved_bytes", MIB),
        "DCGM_FI_DEV_XID_ERRORS": ExporterSeries("last_xid"),
        "DCGM_FI_DEV_POWER_USAGE": ExporterSeries("power_watts"),
        "DCGM_FI_DEV_GPU_TEMP": ExporterSeries("temperature_celsius"),
        "DCGM_FI_DEV_SM_CLOCK": ExporterSeries("sm_clock_hertz", 1e6),
        "DCGM_FI_DEV_MEM_CLOCK": ExporterSeries("memory_clock_hertz", 1e6),
        "DCGM_FI_DEV_MEMORY_TEMP": ExporterSeries("memory_temperature_celsius"),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ExporterSeries("energy_joules", 0.001),
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ExporterSeries("pcie_replays"),
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ExporterSeries("correctable_remapped_rows"),
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ExporterSeries("uncorrectable_remapped_rows"),
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": ExporterSeries("row_remap_failure"),
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ExporterSeries("engine_active_ratio"),
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ExporterSeries("tensor_active_ratio"),
    },
    index_label="gpu",
    uuid_label="UUID",
    model_label="modelName",
    host_label="Hostname",
)
"""NVIDIA's DCGM exporter, port 9400."""

RAY_NODE = ExporterMapping(
    series={
        "ray_node_gpus_utilization": ExporterSeries("utilization_ratio", 0.01),
        "ray_node_gram_used": ExporterSeries("memory_used_bytes", MIB),
        "ray_node_gram_available": ExporterSeries(AVAILABLE, MIB),
        "ray_node_gpu_power_milliwatts": ExporterSeries("power_watts", 0.001),
        "ray_node_gpu_temperature_celsius": ExporterSeries("temperature_celsius"),
        "ray_node_mem_used": ExporterSeries("memory_used_bytes", kind="node"),
        "ray_node_mem_total": ExporterSeries("memory_total_bytes", kind="node"),
        "ray_node_cpu_utilization": ExporterSeries("cpu_utilization_ratio", 0.01, kind="node"),
        "ray_node_cpu_count": ExporterSeries("cpu_cores", kind="node"),
        # Constantly growing totals distinguish one measurement of the agent from the next.
        "ray_node_network_sent": ExporterSeries("", kind="node"),
        "ray_node_network_received": ExporterSeries("", kind="node"),
        "ray_node_disk_io_write": ExporterSeries("", kind="node"),
    },
    index_label="GpuIndex",
    uuid_label="GpuUuid",
    model_label="GpuDeviceName",
)
"""The page of a Ray node's agent."""
