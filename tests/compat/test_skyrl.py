from __future__ import annotations

import http.server
import logging
import sys
import threading
from types import SimpleNamespace

import pytest

from rl_insight.compat.skyrl import RayGpuMonitor

GIB = 1024**3


@pytest.fixture
def ray_node(monkeypatch):
    """Two Ray nodes, the second one dead: a page on loopback, and a `ray` that lists them."""
    pages = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(pages["page"].encode())

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_args: None  # a client that stopped reading
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    node = {
        "NodeID": "aa",
        "Alive": True,
        "NodeManagerAddress": "127.0.0.1",
        "NodeManagerHostname": "gpu-1",
        "MetricsExportPort": server.server_address[1],
        "Resources": {"node:__internal_head__": 1.0},
    }
    dead = {**node, "NodeID": "bb", "Alive": False}
    ray = SimpleNamespace(nodes=lambda: [dead, node], is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "ray", ray)
    yield pages
    server.shutdown()
    server.server_close()


@pytest.fixture
def monitor():
    monitor = RayGpuMonitor(collection_interval=3600.0, request_timeout_s=10.0)
    yield monitor
    monitor.stop()


def flushed(monitor):
    for _ in range(20):
        values = monitor.flush()
        if values:
            return values
    raise AssertionError("no values came")


def test_keys_and_averages_are_exact(ray_node, monitor):
    ray_node["page"] = (
        'ray_node_gpus_utilization{GpuIndex="0"} 30\n'
        'ray_node_gpus_utilization{GpuIndex="1"} 60\n'
        'ray_node_gram_used{GpuIndex="0"} 2048\n'
        'ray_node_gpu_power_milliwatts{GpuIndex="0"} 350000\n'
        f"ray_node_mem_used{{}} {3 * GIB}\n"
    )
    monitor.start()
    assert flushed(monitor) == {
        "ray/node.0.gpu.0.util": pytest.approx(30.0),
        "ray/node.0.gpu.1.util": pytest.approx(60.0),
        "ray/node.0.gpu.0.mem_used_gb": pytest.approx(2.0),
        "ray/node.0.cpu_ram_used_gb": pytest.approx(3.0),
        "ray/gpu.util.avg": pytest.approx(45.0),
        "ray/gpu.mem_used_gb.avg": pytest.approx(2.0),
        "ray/cpu_ram_used_gb.avg": pytest.approx(3.0),
    }


def test_average_without_inputs_is_omitted(ray_node, monitor):
    ray_node["page"] = f"ray_node_mem_used{{}} {GIB}\n"
    monitor.start()
    assert flushed(monitor) == {"ray/node.0.cpu_ram_used_gb": 1.0, "ray/cpu_ram_used_gb.avg": 1.0}


def test_gpu_index_that_is_missing_is_0(ray_node, monitor):
    ray_node["page"] = "ray_node_gpus_utilization 50\n"
    monitor.start()
    assert flushed(monitor) == {"ray/node.0.gpu.0.util": 50.0, "ray/gpu.util.avg": 50.0}


def test_every_step_has_values_even_when_shorter_than_the_interval(ray_node, monitor):
    ray_node["page"] = "ray_node_gpus_utilization 50\n"
    monitor.start()
    assert flushed(monitor)["ray/gpu.util.avg"] == 50.0
    ray_node["page"] = "ray_node_gpus_utilization 70\n"
    assert flushed(monitor)["ray/gpu.util.avg"] == 70.0


def test_concurrent_flushes_drain_once(ray_node, monitor):
    ray_node["page"] = "ray_node_gpus_utilization 50\n"
    monitor.start()
    hardware = monitor._monitor
    with hardware._sampled:
        assert hardware._sampled.wait_for(lambda: hardware._samples, 20)
    monitor.stop()  # no further reading; what was read stays
    results = []
    threads = [threading.Thread(target=lambda: results.append(monitor.flush())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(map(len, results)) == [0] * 7 + [2]


def test_start_and_stop_can_be_repeated(ray_node, monitor):
    ray_node["page"] = "ray_node_gpus_utilization 50\n"
    monitor.start()
    monitor.start()
    monitor.stop()
    monitor.stop()
    monitor.start()
    assert flushed(monitor)["ray/gpu.util.avg"] == 50.0


def test_without_ray_it_warns_and_returns_nothing(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    monitor = RayGpuMonitor()
    with caplog.at_level(logging.WARNING):
        monitor.start()
    assert "no hardware to monitor yet: ray found none" in caplog.text
    assert monitor.flush() == {}
    monitor.stop()


def test_flush_before_start_is_empty():
    assert RayGpuMonitor().flush() == {}


def test_the_interval_is_a_public_attribute():
    assert RayGpuMonitor().collection_interval == 5.0
    assert RayGpuMonitor(2.0).collection_interval == 2.0


def test_nemo_rl_keys(ray_node):
    ray_node["page"] = (
        'ray_node_gpus_utilization{GpuIndex="0",GpuDeviceName="H200"} 30\n'
        'ray_node_gram_used{GpuIndex="0",GpuDeviceName="H200"} 2048\n'
        f"ray_node_mem_used{{}} {3 * GIB}\n"
        f"ray_node_mem_total{{}} {8 * GIB}\n"
    )
    monitor = RayGpuMonitor(3600.0, 10.0, keys="nemo-rl")
    monitor.start()
    values = flushed(monitor)
    monitor.stop()
    assert values == {
        "ray/node.0.gpu.0.util": pytest.approx(30.0),
        "ray/node.0.gpu.0.mem_gb": pytest.approx(2.0),
        "ray/node.0.gpu.0.type": "H200",
        "ray/node.0.mem_gb": pytest.approx(3.0),
        "ray/node.0.mem_total_gb": pytest.approx(8.0),
        "ray/ray_step": values["ray/ray_step"],
    }
    assert isinstance(values["ray/ray_step"], int)


def test_nemo_rl_refuses_to_start_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(ValueError, match="not initialized"):
        RayGpuMonitor(keys="nemo-rl").start()
    with pytest.raises(ValueError, match="skyrl"):
        RayGpuMonitor(keys="other")


def test_the_same_nodes_give_the_same_values_as_skyrl(programs):
    theirs, ours = (programs.run("skyrl_monitor.py", which, original="skyrl") for which in ("original", "ours"))
    assert {key: pytest.approx(value) for key, value in theirs.items()} == ours
    assert len(ours["values"]) == 10
