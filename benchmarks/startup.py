"""The startup time of a server, and the memory of an empty one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from benchmarks.harness import Figure, Options, say
from benchmarks.server_process import running_server

NAME = "startup"

_MEBIBYTE = 1024 * 1024
_SETTLE_S = 1.0


def run(options: Options) -> Iterator[Figure]:
    """Start servers on empty data directories, one after another."""
    rounds = 2 if options.quick else 10
    say(f"startup: {rounds} servers")
    ready: list[float] = []
    processor: list[float] = []
    memory: list[float] = []
    for _ in range(rounds):
        with running_server() as server:
            ready.append(server.ready_s)
            processor.append(server.processor_s())
            server.get("/api/v1/runs")
            time.sleep(_SETTLE_S)
            memory.append(server.peak_memory_bytes() / _MEBIBYTE)
    yield Figure("server start to ready, median", statistics.median(ready), "s", budget=2.0)
    yield Figure("server start to ready, slowest", max(ready), "s")
    yield Figure("CPU time of a start, median", statistics.median(processor), "s")
    yield Figure("memory of an empty server, peak", max(memory), "MiB", budget=200)
