"""SkyRL's Ray GPU monitor, or ours, over a node's page on loopback and a `ray` that lists two nodes."""

from __future__ import annotations

import http.server
import json
import sys
import threading
import time

import stubs

PAGE = """ray_node_gpus_utilization{GpuIndex="0"} 30
ray_node_gpus_utilization{GpuIndex="1"} 60
ray_node_gram_used{GpuIndex="0"} 2048
ray_node_gram_used{GpuIndex="1"} 4096
ray_node_mem_used{} 3221225472
"""


UNNUMBERED = "ray_node_gpus_utilization 90\nray_node_mem_used 1073741824\n"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.page.encode())

    def log_message(self, *_args):
        pass


def serve(page):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.page = page
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def node(name, port, *, alive=True, **resources):
    return {
        "NodeID": name,
        "Alive": alive,
        "NodeManagerAddress": "127.0.0.1",
        "NodeManagerHostname": name,
        "MetricsExportPort": port,
        "Resources": resources,
    }


nodes = [
    node("aa", serve(PAGE), **{"node:__internal_head__": 1.0}),
    node("bb", 9),  # nothing listens there
    node("cc", serve(UNNUMBERED)),
    node("dd", serve(PAGE), alive=False),
    node("ee", serve("unrelated 1\n")),
]
stubs.module("ray", nodes=lambda: nodes, is_initialized=lambda: True)

if sys.argv[1] == "original":
    for name in ("skyrl", "skyrl.train", "skyrl.train.utils"):
        stubs.package(name)
    RayGpuMonitor = stubs.load("skyrl.train.utils.ray_gpu_monitor").RayGpuMonitor
else:
    from rl_insight.compat.skyrl import RayGpuMonitor

monitor = RayGpuMonitor(collection_interval=0.1, request_timeout_s=3.0)
before = monitor.flush()
monitor.start()
monitor.start()
values, deadline = {}, time.monotonic() + 30
while not values and time.monotonic() < deadline:
    time.sleep(0.2)
    values = monitor.flush()
monitor.stop()
monitor.stop()
monitor.start()
again, deadline = {}, time.monotonic() + 30
while not again and time.monotonic() < deadline:
    time.sleep(0.2)
    again = monitor.flush()
monitor.stop()
answers = {"values": values, "before": before, "again": sorted(again), "interval": monitor.collection_interval}
print(json.dumps(answers))
