"""A real Ray cluster of two nodes on this machine, monitored while a node dies and another joins."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap

import pytest

pytestmark = [
    pytest.mark.ray,
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
]

needs_agent = pytest.mark.skipif(
    importlib.util.find_spec("aiohttp") is None or importlib.util.find_spec("opencensus") is None,
    reason="Ray's metrics agent is not installed: pip install 'ray[default]'",
)

PROLOGUE = """
import json, logging, sys, time
import ray
from ray.cluster_utils import Cluster
from rl_insight.hardware import HardwareMonitor, RaySource
from rl_insight.monitor import Monitor
from rl_insight.schema.records import SampleRecord, records

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)

def wait_until(predicate, timeout=90):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if predicate():
            return
        time.sleep(0.2)
    raise SystemExit("timed out waiting")

def alive():
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
"""


def run_driver(tmp_path, program):
    path = tmp_path / "driver.py"
    path.write_text(PROLOGUE + textwrap.dedent(program) + "\nray.shutdown()\ncluster.shutdown()\n")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-1000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@needs_agent
def test_series_follow_nodes_that_die_and_join(tmp_path):
    result = run_driver(
        tmp_path,
        """
        monitor = Monitor()
        monitor.init(config={"server": {"backend": "memory"}})
        transport = monitor._pipeline.transport

        def latest(metric):
            monitor.flush()
            found = {}
            for batch in transport.batches:
                for record in records(batch):
                    if isinstance(record, SampleRecord) and record.metric == metric:
                        found[record.labels["node"]] = record.value
            return found

        second = cluster.add_node(num_cpus=1)
        wait_until(lambda: len(alive()) == 2)
        first_two = alive()
        hardware = HardwareMonitor(0.5, [RaySource(discovery_interval_s=1.0)], monitor).start()
        wait_until(lambda: set(latest("node_memory_used_bytes")) == first_two)
        before = hardware.flush(5)

        cluster.remove_node(second, allow_graceful=False)
        third = cluster.add_node(num_cpus=1)
        wait_until(lambda: len(alive()) == 2 and alive() != first_two)
        survivors = alive()
        wait_until(lambda: survivors <= set(latest("node_memory_used_bytes")))
        wait_until(lambda: latest("node_up")[(first_two - survivors).pop()] == 0.0)
        hardware.flush(5)
        after = {}
        while "ray/node.2.cpu_ram_used_gb" not in after:
            after = hardware.flush(5)
        hardware.stop()

        slow = HardwareMonitor(60.0, [RaySource()], monitor).start()
        wait_until(lambda: slow.flush(5))
        started = time.monotonic()
        slow.stop()
        stopped_in_s = time.monotonic() - started
        print(json.dumps({"before": before, "after": after, "up": latest("node_up"), "running": slow.is_running,
                          "gone": list(first_two - survivors), "stopped_in_s": stopped_in_s}))
        """,
    )
    assert {"ray/node.0.cpu_ram_used_gb", "ray/node.1.cpu_ram_used_gb", "ray/cpu_ram_used_gb.avg"} <= result[
        "before"
    ].keys()
    assert {"ray/node.0.cpu_ram_used_gb", "ray/node.2.cpu_ram_used_gb"} <= result["after"].keys()
    assert "ray/node.1.cpu_ram_used_gb" not in result["after"]
    assert [value for node, value in result["up"].items() if node in result["gone"]] == [0.0]
    assert not any(key.startswith("ray/gpu") for key in result["after"])
    assert result["running"] is False
    print(f"stopped in {result['stopped_in_s']:.3f} s at an interval of 60 s")


def test_cluster_without_the_metrics_agent_falls_back_to_this_machine(tmp_path):
    if importlib.util.find_spec("opencensus") is not None:
        pytest.skip("Ray's metrics agent is installed here")
    result = run_driver(
        tmp_path,
        """
        lines = []
        class Lines(logging.Handler):
            def emit(self, record):
                lines.append(record.getMessage())

        logging.getLogger("rl_insight").addHandler(Lines())
        hardware = HardwareMonitor(0.5, "auto").start()
        wait_until(lambda: hardware.get_status()["samples"] > 0)
        status = hardware.get_status()
        hardware.stop()
        print(json.dumps({"sources": status["sources"], "log": lines}))
        """,
    )
    assert result["sources"] == ["host"]
    assert any("ray[default]" in line for line in result["log"])
