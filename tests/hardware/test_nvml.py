from __future__ import annotations

import itertools
import sys
import threading

import pytest

from rl_insight.hardware import NvmlSource
from rl_insight.hardware import nvml as nvml_module

NEVER = threading.Event()


def by_index(readings, kind="gpu"):
    return {reading.index: reading.values for reading in readings if reading.kind == kind}


def test_gpu_readings_are_in_base_units(helpers, fake_nvml):
    gpu = helpers.FakeGpu(
        b"GPU-a", limit=700_000, temperature=41, clock=1980, pcie=100, nvlink=7, memory=(2**30, 2**31), energy=5_000
    )
    fake_nvml(gpu)
    source = NvmlSource()
    assert source.is_available()
    readings = source.read(NEVER)
    assert by_index(readings)["0"] == {
        "utilization_ratio": 0.31,
        "memory_busy_ratio": 0.12,
        "memory_used_bytes": 2.0**30,
        "memory_total_bytes": 2.0**31,
        "power_watts": 350.5,
        "power_limit_watts": 700.0,
        "temperature_celsius": 41.0,
        "sm_clock_hertz": 1.98e9,
        "energy_joules": 5.0,
        "pcie_sent_bytes_per_second": 102_400.0,
        "pcie_received_bytes_per_second": 102_400.0,
        "nvlink_sent_bytes": 7168.0,
        "nvlink_received_bytes": 7168.0,
    }
    assert readings[0].uuid == "GPU-a"
    assert readings[0].model == "Fake H200"


def test_what_a_gpu_does_not_support_is_absent(helpers, fake_nvml):
    fake_nvml(helpers.FakeGpu("GPU-a", util=None, power=None, energy=None))
    assert by_index(NvmlSource().read(NEVER))["0"].keys() == {"memory_used_bytes", "memory_total_bytes"}


def test_memory_of_each_process_is_reported(helpers, fake_nvml):
    gpu = helpers.FakeGpu("GPU-a")
    gpu.processes = {11: 2**30, 12: None}
    fake_nvml(gpu)
    processes = [reading for reading in NvmlSource().read(NEVER) if reading.kind == "gpu_process"]
    assert [(reading.pid, reading.values) for reading in processes] == [(11, {"memory_used_bytes": 2.0**30})]


def test_slices_of_a_partitioned_gpu_have_their_own_memory(helpers, fake_nvml):
    gpu = helpers.FakeGpu("GPU-a", util=None)
    gpu.slices = [helpers.FakeGpu("MIG-0", memory=(1, 10)), None, helpers.FakeGpu("MIG-2", memory=(2, 10))]
    fake_nvml(gpu)
    found = by_index(NvmlSource().read(NEVER))
    assert found.keys() == {"0", "0:0", "0:2"}
    assert found["0:2"] == {"memory_used_bytes": 2.0, "memory_total_bytes": 10.0}
    assert "utilization_ratio" not in found["0"]


def test_lost_gpu_is_left_out_and_the_others_are_read(helpers, fake_nvml):
    lost, good = helpers.FakeGpu("GPU-a"), helpers.FakeGpu("GPU-b")
    fake_nvml(lost, good)
    source = NvmlSource()
    source.read(NEVER)
    lost.error = helpers.GPU_IS_LOST
    lost.processes = {}
    assert by_index(source.read(NEVER)).keys() == {"1"}


def test_driver_that_disappears_is_restarted(helpers, fake_nvml, monkeypatch):
    monkeypatch.setattr(nvml_module, "_FIRST_RETRY_S", 0.0)
    nvml = fake_nvml(helpers.FakeGpu("GPU-a"))
    source = NvmlSource()
    assert source.read(NEVER)
    nvml.gone = helpers.UNINITIALIZED
    assert source.read(NEVER) == []
    nvml.gone = helpers.DRIVER_NOT_LOADED
    assert source.read(NEVER) == []
    nvml.gone = None
    assert by_index(source.read(NEVER))["0"]["utilization_ratio"] == 0.31
    assert nvml.inits == 2


def test_pauses_between_tries_grow(helpers, fake_nvml, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(nvml_module.time, "monotonic", lambda: now[0])
    nvml = fake_nvml(helpers.FakeGpu("GPU-a"))
    nvml.gone = helpers.DRIVER_NOT_LOADED
    source = NvmlSource()
    tries = []
    original = nvml.nvmlInit
    nvml.nvmlInit = lambda: (tries.append(now[0]), original())
    for _ in range(100):
        source.read(NEVER)
        now[0] += 1.0
    assert [later - earlier for earlier, later in itertools.pairwise(tries)] == [5.0, 10.0, 20.0, 40.0]


def test_machine_without_a_driver_has_nothing_to_watch(helpers, fake_nvml):
    fake_nvml(helpers.FakeGpu("GPU-a")).gone = helpers.DRIVER_NOT_LOADED
    assert not NvmlSource().is_available()


def test_machine_without_gpus_has_nothing_to_watch(fake_nvml):
    nvml = fake_nvml()
    assert not NvmlSource().is_available()
    assert nvml.shutdowns == 1


def test_missing_library_has_nothing_to_watch(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert not NvmlSource().is_available()
    with pytest.raises(ImportError):
        NvmlSource().read(NEVER)


def test_older_library_without_the_second_form_of_memory_works(helpers, fake_nvml):
    nvml = fake_nvml(helpers.FakeGpu("GPU-a", memory=(1, 2)))
    known = nvml.nvmlDeviceGetMemoryInfo

    def older(gpu, version=None):
        if version:
            raise helpers.NVMLError(13)
        return known(gpu)

    nvml.nvmlDeviceGetMemoryInfo = older
    assert by_index(NvmlSource().read(NEVER))["0"]["memory_total_bytes"] == 2.0
