"""The contract of `rl_insight.hardware.base.Source`, checked against every implementation."""

from __future__ import annotations

import sys
import threading
from math import isfinite

import pytest

from rl_insight.hardware import ExporterSource, HostSource, NvmlSource, RaySource
from rl_insight.hardware.exporter import ASCEND_NPU
from rl_insight.hardware.quantities import QUANTITIES
from rl_insight.hardware.ray import RayNode
from tests.hardware import helpers

NEVER = threading.Event()


class RayCase:
    def __init__(self, monkeypatch):
        gpus = [{"index": 0, "util": 31, "mib": 5, "free_mib": 5}, {"index": 1, "util": "NaN"}]
        self.server = helpers.PageServer(helpers.ray_page(gpus=gpus, ram=7))
        node = RayNode("id0", "host0", "127.0.0.1", self.server.port)
        self.source = RaySource(10.0, list_nodes=lambda: [node])

    def break_it(self):
        self.server.status = 500

    def mend_it(self):
        self.server.status = 200

    def stop(self):
        self.server.stop()


class ExporterCase(RayCase):
    def __init__(self, monkeypatch):
        page = 'npu_chip_info_utilization{id="0"} 5\nnpu_chip_info_power{id="0"} NaN\n'
        self.server = helpers.PageServer(page)
        self.source = ExporterSource(self.server.url, ASCEND_NPU)


class NvmlCase:
    def __init__(self, monkeypatch):
        self.gpu = helpers.FakeGpu("GPU-a", energy=None)
        self.nvml = helpers.FakeNvml(self.gpu)
        monkeypatch.setitem(sys.modules, "pynvml", self.nvml)
        monkeypatch.setattr("rl_insight.hardware.nvml._FIRST_RETRY_S", 0.0)
        self.source = NvmlSource()

    def break_it(self):
        self.nvml.gone = 1

    def mend_it(self):
        self.nvml.gone = None

    def stop(self):
        self.source.close()


class HostCase:
    def __init__(self, monkeypatch):
        import psutil

        self.source = HostSource()
        self.monkeypatch, self.psutil = monkeypatch, psutil
        self.memory = psutil.virtual_memory

    def break_it(self):
        def fail():
            raise OSError("/proc/meminfo")

        self.monkeypatch.setattr(self.psutil, "virtual_memory", fail)

    def mend_it(self):
        self.monkeypatch.setattr(self.psutil, "virtual_memory", self.memory)

    def stop(self):
        self.source.close()


@pytest.fixture(params=[RayCase, ExporterCase, NvmlCase, HostCase], ids=["ray", "exporter", "nvml", "host"])
def case(request, monkeypatch):
    case = request.param(monkeypatch)
    yield case
    case.stop()


def test_there_is_something_to_watch(case):
    assert case.source.is_available()


def test_values_are_known_quantities_and_finite(case):
    readings = case.source.read(NEVER)
    assert readings
    for reading in readings:
        for name, value in reading.values.items():
            assert (reading.kind, name) in QUANTITIES
            assert isfinite(value)


def test_readings_are_about_different_things_and_keep_their_names(case):
    first, second = case.source.read(NEVER), case.source.read(NEVER)
    assert len({reading.key for reading in first}) == len(first)
    assert {reading.key for reading in first} == {reading.key for reading in second}


def test_what_cannot_be_read_is_absent_and_comes_back(case):
    whole = {(reading.key, name) for reading in case.source.read(NEVER) for name in reading.values}
    case.break_it()
    part = {(reading.key, name) for reading in case.source.read(NEVER) for name in reading.values}
    assert part < whole
    case.mend_it()
    again = {(reading.key, name) for reading in case.source.read(NEVER) for name in reading.values}
    assert whole - {key for key in whole if "cpu_utilization" in key[1]} <= again


def test_close_can_be_repeated_and_reading_continues_afterwards(case):
    case.source.close()
    assert case.source.read(NEVER)
    case.source.close()
    case.source.close()
    assert case.source.read(NEVER)


def test_read_after_stop_is_short_and_does_not_raise(case):
    stop = threading.Event()
    stop.set()
    assert isinstance(case.source.read(stop), list)
