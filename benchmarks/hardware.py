"""The cost of monitoring a large Ray cluster: 64 nodes with 8 GPUs each, every 5 s.

The budget covers all work that the monitor causes in this process: its own thread, which fetches, parses, averages and
records, and the recorder's threads, which encode the readings and send them to a server over HTTP.
"""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from benchmarks.harness import Figure, Options, say
from benchmarks.sink import running_sink
from rl_insight.hardware import HardwareMonitor, RaySource
from rl_insight.hardware.ray import RayNode
from rl_insight.monitor import Monitor

NAME = "hardware"

NODES = 64
GPUS = 8
INTERVAL_S = 5.0
MEASURED_INTERVAL_S = 0.5
BUDGET_PERCENT = 0.5


def run(options: Options) -> Iterator[Figure]:
    say(f"hardware: {NODES} nodes of {GPUS} GPUs")
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    servers = context.Process(target=_serve, args=(sender,), daemon=True)
    servers.start()
    ports: list[int] = receiver.recv()
    try:
        with running_sink() as sink:
            yield from _measure(ports, sink.url, 10 if options.quick else 60)
    finally:
        servers.terminate()
        servers.join()


def _measure(ports: list[int], server_url: str, readings: int) -> Iterator[Figure]:
    nodes = [RayNode(f"{port:056x}", f"node-{port}", "127.0.0.1", port) for port in ports]
    monitor = Monitor()
    monitor.init("benchmark", "hardware", {"server": {"backend": "http", "url": server_url}})
    hardware = HardwareMonitor(MEASURED_INTERVAL_S, [RaySource(list_nodes=lambda: nodes)], monitor)
    hardware.start()
    _wait_for(hardware, 3)
    clock = _clock_of("rl-insight-hardware")
    first, cpu, thread = hardware.get_status()["samples"], time.process_time(), time.clock_gettime(clock)
    _wait_for(hardware, first + readings)
    cpu, thread = time.process_time() - cpu, time.clock_gettime(clock) - thread
    taken = hardware.get_status()["samples"] - first
    means = hardware.flush()
    hardware.stop()
    monitor.finish()
    yield Figure("GPUs seen", sum(key.endswith(".util") and ".gpu." in key for key in means), "", NODES * GPUS, True)
    yield Figure("CPU time to scrape all nodes, including delivery", cpu / taken * 1e3, "ms")
    yield Figure("share of one core at 5 s, including delivery", cpu / taken / INTERVAL_S * 100, "%", BUDGET_PERCENT)
    yield Figure("of which in the monitor's thread", thread / taken / INTERVAL_S * 100, "%")


def _clock_of(name: str) -> int:
    """Return the CPU clock of the thread with this name."""
    thread = next(thread for thread in threading.enumerate() if thread.name == name)
    return time.pthread_getcpuclockid(thread.ident or 0)


def _wait_for(hardware: HardwareMonitor, samples: int) -> None:
    while hardware.get_status()["samples"] < samples:
        time.sleep(0.2)


def _serve(sender: Connection) -> None:
    """Serve the pages of all nodes from one process, with new values each time."""
    listeners = [socket.create_server(("127.0.0.1", 0), backlog=16) for _ in range(NODES)]
    sender.send([listener.getsockname()[1] for listener in listeners])
    selector = selectors.DefaultSelector()
    for listener in listeners:
        selector.register(listener, selectors.EVENT_READ)
    count = 0
    while True:
        for key, _events in selector.select():
            connection, _address = key.fileobj.accept()  # type: ignore[union-attr]  # a listener
            with connection:
                count += 1
                connection.recv(4096)
                page = _page(count)
                connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n" + page)


_LABELS = (
    'IsHeadNode="false",RayNodeType="worker",SessionName="session_2026-01-01_00-00-00_348512_14280",Version="2.60.0",'
    'ip="10.0.0.1",otel_scope_name="ray._private.telemetry.open_telemetry_metric_recorder",otel_scope_schema_url="",'
    'otel_scope_version=""'
)
_FILLER = "".join(
    f'ray_component_{name}{{Component="ray::Worker{number}",{_LABELS},pid="{14000 + number}"}} {number}\n'
    for name in ("cpu_percentage", "rss_mb", "uss_mb", "num_fds")
    for number in range(40)
)
"""The rest of the page of a node with 40 workers: about 60 kB."""


def _page(count: int) -> bytes:
    lines = [_FILLER]
    for name, value in (
        ("ray_node_mem_used", 4e11 + count),
        ("ray_node_mem_total", 2e12),
        ("ray_node_cpu_utilization", count % 100),
        ("ray_node_cpu_count", 192),
        ("ray_node_network_sent", 1e9 + count),
    ):
        lines.append(f"# TYPE {name} gauge\n{name}{{{_LABELS}}} {value:.15g}\n")
    for name in ("gpus_utilization", "gram_used", "gram_available", "gpu_power_milliwatts", "gpu_temperature_celsius"):
        lines.append(f"# TYPE ray_node_{name} gauge\n")
        for gpu in range(GPUS):
            device = f'{_LABELS},GpuDeviceName="NVIDIA H200",GpuIndex="{gpu}",GpuUuid="GPU-{gpu}"'
            value = 60 + gpu if name == "gpu_temperature_celsius" else (count * 7 + gpu) % 100
            lines.append(f"ray_node_{name}{{{device}}} {value}\n")
    return "".join(lines).encode()
