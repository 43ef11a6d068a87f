from __future__ import annotations

import threading

import pytest

from rl_insight.hardware import ExporterSource
from rl_insight.hardware.exporter import AMD_GPU, ASCEND_NPU, NVIDIA_DCGM, ExporterMapping, ExporterSeries

NEVER = threading.Event()

AMD_PAGE = """\
# HELP gpu_gfx_activity Graphics engine activity, in percent
# TYPE gpu_gfx_activity gauge
gpu_gfx_activity{card_model="MI300X",gpu_id="0",gpu_uuid="a0",hostname="mi-1"} 97
gpu_gfx_activity{card_model="MI300X",gpu_id="1",gpu_uuid="a1",hostname="mi-1"} 12
gpu_used_vram{card_model="MI300X",gpu_id="0",gpu_uuid="a0",hostname="mi-1"} 1024
gpu_package_power{card_model="MI300X",gpu_id="0",gpu_uuid="a0",hostname="mi-1"} 612.5
"""
ASCEND_PAGE = """\
# TYPE npu_chip_info_utilization gauge
npu_chip_info_utilization{id="3",model_name="910B",vdie_id="d3"} 45 1700000000000
npu_chip_info_hbm_used_memory{id="3",model_name="910B",vdie_id="d3"} 2048 1700000000000
npu_chip_info_temperature{id="3",model_name="910B",vdie_id="d3"} 51 1700000000000
"""


def devices(readings):
    return {(reading.host, reading.index): reading for reading in readings if reading.kind == "gpu"}


def test_amd_gpus(page_server):
    readings = ExporterSource(page_server(AMD_PAGE).url, AMD_GPU).read(NEVER)
    gpu = devices(readings)["mi-1", "0"]
    assert (gpu.uuid, gpu.model) == ("a0", "MI300X")
    assert gpu.values == {"utilization_ratio": 0.97, "memory_used_bytes": 2.0**30, "power_watts": 612.5}
    assert devices(readings)["mi-1", "1"].values == {"utilization_ratio": 0.12}


def test_preset_fits_an_exporter_that_spells_names_otherwise(page_server):
    page = AMD_PAGE.replace("gpu_", "amd_gpu_").replace("amd_gpu_package_power", "amd_gpu_average_package_power")
    mapping = AMD_GPU.with_prefix("amd_").with_series({"amd_gpu_average_package_power": ExporterSeries("power_watts")})
    page = page.replace("amd_gpu_id", "gpu_id").replace("amd_gpu_uuid", "gpu_uuid")
    gpu = devices(ExporterSource(page_server(page).url, mapping).read(NEVER))["mi-1", "0"]
    assert gpu.values == {"utilization_ratio": 0.97, "memory_used_bytes": 2.0**30, "power_watts": 612.5}


def test_ascend_npus_with_time_stamps_on_their_lines(page_server):
    npu = devices(ExporterSource(page_server(ASCEND_PAGE).url, ASCEND_NPU).read(NEVER))["127.0.0.1", "3"]
    assert npu.values == {"utilization_ratio": 0.45, "memory_used_bytes": 2.0**31, "temperature_celsius": 51.0}
    assert npu.uuid == "d3"


def test_dcgm_energy_is_in_joules(page_server):
    page = 'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-0",Hostname="h"} 5000\n'
    assert devices(ExporterSource(page_server(page).url, NVIDIA_DCGM).read(NEVER))["h", "0"].values == {
        "energy_joules": 5.0
    }


def test_dcgm_says_what_the_chip_really_does(page_server):
    readings = {
        "DCGM_FI_DEV_MEM_CLOCK": 2619,
        "DCGM_FI_DEV_MEMORY_TEMP": 71,
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 3,
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 2,
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 1,
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.98,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.31,
    }
    page = "".join(f'{name}{{gpu="0",UUID="GPU-0",Hostname="h"}} {value}\n' for name, value in readings.items())
    assert devices(ExporterSource(page_server(page).url, NVIDIA_DCGM).read(NEVER))["h", "0"].values == {
        "memory_clock_hertz": 2.619e9,
        "memory_temperature_celsius": 71,
        "pcie_replays": 3,
        "correctable_remapped_rows": 2,
        "uncorrectable_remapped_rows": 1,
        "row_remap_failure": 0,
        "engine_active_ratio": 0.98,
        "tensor_active_ratio": 0.31,
    }


@pytest.mark.parametrize("reserved", [None, 600])
def test_dcgm_reports_the_memory_installed_and_the_last_error(page_server, reserved):
    readings = {"DCGM_FI_DEV_FB_USED": 1000, "DCGM_FI_DEV_FB_FREE": 400, "DCGM_FI_DEV_XID_ERRORS": 79}
    if reserved:
        readings["DCGM_FI_DEV_FB_RESERVED"] = reserved
    page = "".join(f'{name}{{gpu="0",UUID="GPU-0",Hostname="h"}} {value}\n' for name, value in readings.items())
    found = devices(ExporterSource(page_server(page).url, NVIDIA_DCGM).read(NEVER))["h", "0"].values
    assert found["memory_total_bytes"] == (1400 + (reserved or 0)) * 2**20
    assert found["last_xid"] == 79


def test_exporter_that_does_not_respond_is_down_and_the_others_are_read(page_server):
    away, good = page_server(), page_server(AMD_PAGE)
    url = away.url
    away.stop()
    readings = ExporterSource([url, good.url], AMD_GPU).read(NEVER)
    ups = {reading.host: reading.values["up"] for reading in readings if "up" in reading.values}
    assert ups == {"127.0.0.1": 0.0, "mi-1": 1.0}
    assert len(devices(readings)) == 2


def test_node_series_can_be_mapped(page_server):
    mapping = ExporterMapping({"node_load": ExporterSeries("cpu_utilization_ratio", 0.01, kind="node")})
    (reading,) = ExporterSource(page_server("node_load 50\n").url, mapping).read(NEVER)
    assert reading.values == {"cpu_utilization_ratio": 0.5, "up": 1.0}


@pytest.mark.parametrize(
    ("url", "series", "message"),
    [
        ("10.0.0.7:9400", ExporterSeries("power_watts"), "address of an exporter"),
        ("ftp://host/metrics", ExporterSeries("power_watts"), "address of an exporter"),
        ("http://host/metrics", ExporterSeries("horsepower"), "no such quantity"),
        ("http://host/metrics", ExporterSeries("threads", kind="process"), "no such quantity"),
    ],
)
def test_wrong_use_is_refused(url, series, message):
    with pytest.raises(ValueError, match=message):
        ExporterSource(url, ExporterMapping({"x": series}))
