from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from rl_insight.hardware import RaySource
from rl_insight.hardware.ray import RayNode

DATA = Path(__file__).parent / "data"
NEVER = threading.Event()


def nodes_of(*servers):
    return [RayNode(f"id{place}", f"host{place}", "127.0.0.1", server.port) for place, server in enumerate(servers)]


def source_for(*servers, timeout_s=10.0):
    nodes = nodes_of(*servers)
    return RaySource(timeout_s, list_nodes=lambda: nodes)


def test_real_page_of_a_node_without_gpus(page_server):
    server = page_server((DATA / "ray-2.60-node-metrics.txt").read_text())
    (reading,) = source_for(server).read(NEVER)
    assert (reading.node, reading.host, reading.kind) == ("id0", "host0", "node")
    assert reading.values["memory_used_bytes"] == 4.90872832e08
    assert reading.values["memory_total_bytes"] == 2.5274793984e10
    assert reading.values["up"] == 1.0


def test_gpu_series_are_converted_to_base_units(page_server, helpers):
    server = page_server(helpers.ray_page(gpus=[{"index": 3, "util": 31, "mib": 1024, "free_mib": 1024}]))
    gpu = source_for(server).read(NEVER)[1]
    assert (gpu.kind, gpu.index, gpu.uuid) == ("gpu", "3", "GPU-3")
    assert gpu.values == {
        "utilization_ratio": pytest.approx(0.31),
        "memory_used_bytes": 2.0**30,
        "memory_total_bytes": 2.0**31,
    }


def test_gpu_without_index_is_number_0(page_server, helpers):
    server = page_server(helpers.ray_page(gpus=[{"util": 50}]))
    assert source_for(server).read(NEVER)[1].index == "0"


def test_gpus_come_in_the_order_of_their_numbers(page_server, helpers):
    server = page_server(helpers.ray_page(gpus=[{"index": index, "util": 1} for index in (10, 2, 0)]))
    assert [reading.index for reading in source_for(server).read(NEVER)[1:]] == ["0", "2", "10"]


def test_what_the_page_does_not_have_is_absent(page_server, helpers):
    server = page_server(helpers.ray_page(gpus=[{"index": 0, "mib": 5}]) + "ray_node_mem_used{} NaN\n")
    node, gpu = source_for(server).read(NEVER)
    assert node.values == {"up": 1.0}
    assert gpu.values.keys() == {"memory_used_bytes"}


@pytest.mark.parametrize(
    ("status", "raw"),
    [
        (500, None),
        (200, b"nonsense"),
        (200, b""),
        (200, b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\nray_node_mem_used 5"),
        (200, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
    ],
)
def test_node_that_answers_badly_is_down_and_the_rest_is_read(page_server, helpers, status, raw):
    bad, good = page_server(), page_server(helpers.ray_page(ram=5))
    bad.status, bad.raw = status, raw
    down, up = source_for(bad, good).read(NEVER)
    assert (down.node, down.values) == ("id0", {"up": 0.0})
    assert (up.node, up.values["memory_used_bytes"]) == ("id1", 5.0)


def test_node_that_hangs_costs_its_own_values_only(page_server, helpers):
    hanging, good = page_server(), page_server(helpers.ray_page(ram=5))
    hanging.hang.set()
    down, up = source_for(hanging, good, timeout_s=0.3).read(NEVER)
    assert down.values == {"up": 0.0}
    assert up.values["memory_used_bytes"] == 5.0


def test_node_that_refuses_connections_is_down(page_server, helpers):
    gone, good = page_server(), page_server(helpers.ray_page(ram=5))
    source = source_for(gone, good)
    gone.stop()
    assert [reading.values["up"] for reading in source.read(NEVER)] == [0.0, 1.0]


def test_chunked_page_is_read(page_server):
    server = page_server()
    body = b"ray_node_mem_used 5\n"
    server.raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    assert source_for(server).read(NEVER)[0].values["memory_used_bytes"] == 5.0


def test_more_nodes_than_connections_are_all_read(page_server, helpers):
    server = page_server(helpers.ray_page(ram=5))
    nodes = [RayNode(f"id{place}", "h", f"127.0.0.{place + 1}", server.port) for place in range(3)]
    server_nodes = [
        RayNode(f"id{place}", "h", "127.0.0.1", page_server(helpers.ray_page(ram=1)).port) for place in range(70)
    ]
    readings = RaySource(20.0, list_nodes=lambda: [*nodes[:1], *server_nodes]).read(NEVER)
    assert sum(reading.values["up"] for reading in readings) == 71


def test_stop_ends_a_read_that_waits(page_server):
    server = page_server()
    server.hang.set()
    stop = threading.Event()
    source = source_for(server, timeout_s=60)
    found = []
    reader = threading.Thread(target=lambda: found.append(source.read(stop)))
    reader.start()
    stop.set()
    reader.join(10)
    assert found == [[]]


def test_same_measurement_keeps_its_stamp(page_server, helpers):
    server = page_server(helpers.ray_page(gpus=[{"index": 0, "util": 31}], ram=5, sent=100))
    source = source_for(server)
    first, again = source.read(NEVER), source.read(NEVER)
    assert [reading.stamp for reading in first] == [reading.stamp for reading in again]
    server.page = helpers.ray_page(gpus=[{"index": 0, "util": 31}], ram=5, sent=101)
    assert source.read(NEVER)[0].stamp != first[0].stamp


def test_nodes_that_come_and_go_are_followed(page_server, helpers):
    servers = [page_server(helpers.ray_page(ram=place)) for place in range(3)]
    everything = nodes_of(*servers)
    alive = everything[:2]
    source = RaySource(list_nodes=lambda: list(alive), discovery_interval_s=0.0)
    assert [reading.node for reading in source.read(NEVER)] == ["id0", "id1"]
    alive = everything[1:]
    readings = {reading.node: reading.values["up"] for reading in source.read(NEVER)}
    assert readings == {"id0": 0.0, "id1": 1.0, "id2": 1.0}
    assert [reading.node for reading in source.read(NEVER)] == ["id1", "id2"]


def test_failed_page_has_the_nodes_listed_again(page_server, helpers):
    gone, other = page_server(helpers.ray_page(ram=1)), page_server(helpers.ray_page(ram=2))
    alive = nodes_of(gone)
    source = RaySource(list_nodes=lambda: list(alive), discovery_interval_s=3600)
    source.read(NEVER)
    gone.stop()
    alive = nodes_of(gone, other)[1:]
    assert source.read(NEVER)[0].values == {"up": 0.0}
    assert source.read(NEVER)[-1].node == "id1"


def test_ray_without_its_metrics_agent_is_a_clear_warning(caplog):
    source = RaySource(list_nodes=lambda: [RayNode("id0", "h", "127.0.0.1", -1)])
    with caplog.at_level(logging.WARNING):
        assert not source.is_available()
        assert [reading.values for reading in source.read(NEVER)] == [{"up": 0.0}]
    assert caplog.text.count("ray[default]") == 1


def test_ray_that_is_not_initialized_is_not_available():
    assert not RaySource().is_available()
