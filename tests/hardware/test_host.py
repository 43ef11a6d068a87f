from __future__ import annotations

import os
import sys
import threading

import psutil
import pytest

from rl_insight.hardware import HostSource
from rl_insight.hardware.cgroup import read_cgroup
from tests.waiting import wait_until

NEVER = threading.Event()


def read(source, kind):
    return next(reading for reading in source.read(NEVER) if reading.kind == kind)


def test_machine_and_process_are_reported():
    source = HostSource()
    source.read(NEVER)
    node = read(source, "node").values
    assert node["memory_total_bytes"] == psutil.virtual_memory().total
    assert 0 < node["memory_used_bytes"] < node["memory_total_bytes"]
    assert node["disk_total_bytes"] == psutil.disk_usage("/").total
    assert node["cpu_cores"] == psutil.cpu_count()
    process = read(source, "process")
    assert process.pid == os.getpid()
    assert process.values["threads"] >= 1
    assert process.values["resident_memory_bytes"] > 1_000_000


def test_cpu_share_is_absent_until_there_is_a_window_to_measure():
    source = HostSource()
    assert "cpu_utilization_ratio" not in read(source, "node").values
    wait_until(lambda: "cpu_utilization_ratio" in read(source, "node").values)


def test_process_alone_is_reported_on_request():
    assert [reading.kind for reading in HostSource(process_only=True).read(NEVER)] == ["process"]


def test_what_the_system_does_not_report_is_absent(monkeypatch):
    def fail(*_args, **_kwargs):
        raise PermissionError("/proc/diskstats")

    monkeypatch.setattr(psutil, "disk_io_counters", lambda: None)
    monkeypatch.setattr(psutil, "swap_memory", fail)
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic: {})
    values = read(HostSource(), "node").values
    assert not {"disk_read_bytes", "swap_used_bytes", "network_sent_bytes"} & values.keys()
    assert "memory_used_bytes" in values


def test_missing_psutil_has_nothing_to_watch(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert not HostSource().is_available()


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "membership", "expected"),
    [
        (
            {
                "cgroup.controllers": "cpu memory",
                "pod/job/memory.max": "max\n",
                "pod/job/memory.current": "500\n",
                "pod/job/cpu.max": "max 100000\n",
                "pod/memory.max": "1000\n",
                "pod/cpu.max": "250000 100000\n",
            },
            "0::/pod/job\n",
            {"cgroup_memory_used_bytes": 500, "cgroup_memory_limit_bytes": 1000, "cgroup_cpu_limit_cores": 2.5},
        ),
        (
            {"cgroup.controllers": "", "memory.current": "7", "memory.max": "9"},
            "0::/not/visible/inside\n",
            {"cgroup_memory_used_bytes": 7, "cgroup_memory_limit_bytes": 9},
        ),
        (
            {
                "memory/job/memory.usage_in_bytes": "500",
                "memory/job/memory.limit_in_bytes": "9223372036854771712",
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "cpu/job/cpu.cfs_quota_us": "-1",
                "cpu/job/cpu.cfs_period_us": "100000",
                "cpu/cpu.cfs_quota_us": "150000",
                "cpu/cpu.cfs_period_us": "100000",
            },
            "4:memory:/job\n3:cpu,cpuacct:/job\nbroken\n",
            {"cgroup_memory_used_bytes": 500, "cgroup_cpu_limit_cores": 1.5},
        ),
        ({}, "", {}),
        ({"cgroup.controllers": "", "memory.max": "many"}, "0::/../../etc\n", {}),
    ],
    ids=["v2-nested", "v2-in-container", "v1", "none", "nonsense"],
)
def test_limits_of_the_control_group(tmp_path, files, membership, expected):
    root = tmp_path / "cgroup"
    root.mkdir()
    write(root, files)
    (tmp_path / "self").write_text(membership)
    assert read_cgroup(root, tmp_path / "self") == expected


def test_system_without_control_groups_has_no_limits(tmp_path):
    assert read_cgroup(tmp_path, tmp_path / "missing") == {}
