"""Many processes on one server: 10,000 behind node hubs, and 1,000 that send directly.

    python -m benchmarks scale --minutes 30

A few sender processes simulate all of them. Each simulated process makes a batch of 20 spans and 10 gauges whenever it
flushes, with its own identity, sequence numbers and clock, and flushes at the interval that the server's acknowledgment
requests. Meanwhile the views of the page are queried over HTTP.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
import urllib.parse
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import msgspec

from benchmarks.harness import Figure, Options, say
from benchmarks.server_process import ServerProcess, running_server
from rl_insight.schema import Batch, BatchBuilder, Process, frame
from rl_insight.schema.bundle import encode_bundle
from rl_insight.transport.ingest_client import CONTENT_TYPE, INGEST_PATH

NAME = "scale"

_MEBIBYTE = 1024 * 1024
_SENDERS = 2
_PER_HUB = 8
_SPANS, _GAUGES = 20, 10
_FIRST_INTERVAL_S = 0.5
_LONGEST_INTERVAL_S = 10.0
_RETRY_S = 1.0
_LOOK_EVERY_S = 60.0
_SHOWN_LANES = 50
_TIMELINE_NS = 60 * 1_000_000_000
_VIEWS: dict[str, dict[str, Any]] = {
    "summary": {},
    "lanes": {},
    "timeline": {"pixels": 1_200, "lane": range(_SHOWN_LANES)},
    "hotspots": {"last_steps": 1},
    "steps": {"limit": 12},
    "metrics": {},
    "findings": {},
    "processes": {},
    "steps/critical_path": {"limit": 10},
}
"""The views of the page, queried as by the page while a run is live."""


class Load(NamedTuple):
    """The processes that the senders simulate."""

    run_id: str
    processes: int
    per_connection: int
    """1, or the number of processes per hub."""
    seconds: float


class Sent(NamedTuple):
    """The result of a sender process."""

    batches: int
    spans: int
    refused: int
    """Requests that got a 429 or 503 and were sent again."""
    interval_s: float
    """The interval that the server requested last."""


def run(options: Options) -> Iterator[Figure]:
    """Measure both ways of sending, each with a fresh server."""
    seconds = options.minutes * 60 or (8.0 if options.quick else 60.0)
    many, few = (400, 100) if options.quick else (10_000, 1_000)
    loads = {
        "through hubs": Load("hubs", many, _PER_HUB, seconds),
        "direct": Load("direct", few, 1, seconds),
    }
    for way, load in loads.items():
        say(f"scale: {load.processes:,} processes {way} for {seconds:.0f} s")
        with running_server() as server:
            yield from _measure(server, load, f"{load.processes:,} processes {way}")


def _measure(server: ServerProcess, load: Load, name: str) -> Iterator[Figure]:
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for number in range(_SENDERS):
        ours, theirs = context.Pipe()
        child = context.Process(target=_send, args=(server.url, load, number, theirs))
        child.start()
        children.append(child)
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    processor_s, begun = server.processor_s(), time.perf_counter()
    for pipe in pipes:
        pipe.send("go")
    took, memory = _ask_views(server, load.run_id, begun + load.seconds)
    every = [seconds for some in took.values() for seconds in some]
    sent = [pipe.recv() for pipe in pipes]
    for child in children:
        child.join()
    spans = sum(one.spans for one in sent)
    server.wait_for_spans(load.run_id, spans, timeout_s=60.0)
    used = server.processor_s() - processor_s
    elapsed = time.perf_counter() - begun
    batches = sum(one.batches for one in sent)
    yield Figure(f"{name}: batches", batches / elapsed, "/s")
    yield Figure(f"{name}: batches per second of server CPU time", batches / used, "/s")
    yield Figure(f"{name}: server CPU time", used / elapsed * 100, "% of a core")
    yield Figure(f"{name}: spans lost", spans - server.visible_spans(load.run_id), "spans", budget=0)
    yield Figure(f"{name}: requests that had to be sent again", sum(one.refused for one in sent), "requests")
    yield Figure(f"{name}: flush interval that the server requested", max(one.interval_s for one in sent), "s")
    yield Figure(f"{name}: server memory, peak", server.peak_memory_bytes() / _MEBIBYTE, "MiB", budget=2048)
    if len(memory) > 1:
        yield Figure(f"{name}: server memory, halfway", memory[len(memory) // 2] / _MEBIBYTE, "MiB")
        yield Figure(f"{name}: server memory, at the end", memory[-1] / _MEBIBYTE, "MiB")
    yield Figure(f"{name}: views, p95", _p95(every) * 1000, "ms", budget=300)
    for view, some in took.items():
        yield Figure(f"{name}: {view}, p95", _p95(some) * 1000, "ms")
    yield from _costs(server, name, elapsed)


def _costs(server: ServerProcess, name: str, elapsed: float) -> Iterator[Figure]:
    """Measure the cost of diagnosis and `/metrics`."""
    threads = server.get_json("/api/v1/status")["processor_seconds"]
    diagnosis = sum(seconds for thread, seconds in threads.items() if "diagnosis" in thread)
    yield Figure(f"{name}: live diagnosis", diagnosis / elapsed * 100, "% of a core", budget=3.0)
    begun = time.perf_counter()
    size = len(server.get("/metrics"))
    yield Figure(f"{name}: /metrics", time.perf_counter() - begun, "s")
    yield Figure(f"{name}: /metrics, size", size / _MEBIBYTE, "MiB")


def _ask_views(server: ServerProcess, run_id: str, end: float) -> tuple[dict[str, list[float]], list[int]]:
    """Query the views of the page in turn until the end; returns the seconds of each, and memory by minute."""
    took: dict[str, list[float]] = {view: [] for view in _VIEWS}
    memory: list[int] = []
    look_at = time.perf_counter() + _LOOK_EVERY_S
    while (now := time.perf_counter()) < end:
        for view, parameters in _VIEWS.items():
            window = {"start_ns": time.time_ns() - _TIMELINE_NS, "end_ns": time.time_ns()} if view == "timeline" else {}
            begun = time.perf_counter()
            try:
                server.get(f"/api/v1/{view}", run=run_id, **parameters, **window)
            except RuntimeError:
                if took[view]:
                    raise
                continue  # nothing has been stored yet
            took[view].append(time.perf_counter() - begun)
        if now >= look_at:
            look_at = now + _LOOK_EVERY_S
            memory.append(server.memory_bytes())
            slowest = max(took, key=lambda view: _p95(took[view]))
            spans = server.visible_spans(run_id)
            say(
                f"scale: minute {len(memory)}: {memory[-1] / _MEBIBYTE:.0f} MiB, {spans:,} spans, slowest view so far: "
                f"{slowest}, p95 {_p95(took[slowest]) * 1000:.0f} ms"
            )
        time.sleep(0.5)
    return took, memory


def _p95(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)] if values else 0.0


# -- in the sender processes


def _send(url: str, load: Load, number: int, control: Connection) -> None:
    control.send("ready")
    control.recv()
    control.send(asyncio.run(_send_all(url, load, number)))


async def _send_all(url: str, load: Load, number: int) -> Sent:
    ranks = range(number, load.processes, _SENDERS)
    groups = [ranks[first : first + load.per_connection] for first in range(0, len(ranks), load.per_connection)]
    end = time.perf_counter() + load.seconds
    connections = [_Connection(url, [_Simulated(load.run_id, rank) for rank in group]) for group in groups]
    await asyncio.gather(*(connection.send_until(end) for connection in connections))
    return Sent(
        sum(connection.batches for connection in connections),
        sum(connection.batches for connection in connections) * _SPANS,
        sum(connection.refused for connection in connections),
        max(connection.interval_s for connection in connections),
    )


class _Simulated:
    """A process that records a little: 20 spans and 10 gauges in each batch."""

    def __init__(self, run_id: str, rank: int) -> None:
        self._process = Process(
            process_id=f"scale-{rank}", run_id=run_id, host=f"node{rank // _PER_HUB}", pid=rank, project="benchmarks",
            experiment_name="scale", role="actor" if rank % 4 else "rollout", rank=rank,
            heartbeat_s=_LONGEST_INTERVAL_S,
        )  # fmt: skip
        self._sequence = 0

    def batch(self, interval_s: float) -> Batch:
        """Return the process's records since its last batch."""
        self._sequence += 1
        builder = BatchBuilder()
        now = time.time_ns()
        each = int(interval_s * 1e9 / _SPANS)
        for number in range(_SPANS):
            builder.add_span(
                span_id=(self._process.pid << 32) + self._sequence * 100 + number,
                trace=(self._process.pid, self._sequence),
                name=("generate", "reward", "update_actor", "wait")[number % 4],
                start_ns=now - (_SPANS - number) * each,
                duration_ns=each,
                segment="state_interval",
                step=self._sequence,
            )
        for number in range(_GAUGES):
            series = builder.add_series(f"gauge_{number}", "gauge", "", f'{{"rank":"{self._process.rank}"}}')
            builder.add_sample(series, time_ns=now, value=0.5, step=self._sequence)
        return builder.build(self._process, sequence=self._sequence, sent_ns=now)


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Connection:
    """A process, or the hub of several, that sends to the server at the interval it requests."""

    def __init__(self, url: str, processes: list[_Simulated]) -> None:
        parts = urllib.parse.urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._processes = processes
        self.batches = self.refused = 0
        self.interval_s = _FIRST_INTERVAL_S

    async def send_until(self, end: float) -> None:
        """Send until the end; returns once everything is acknowledged."""
        # Processes start within a few seconds of each other, and stay unsynchronized.
        await asyncio.sleep(random.random() * 5.0)
        streams = await asyncio.open_connection(self._host, self._port)
        try:
            while time.perf_counter() < end:
                begun = time.perf_counter()
                body = frame(encode_bundle([process.batch(self.interval_s) for process in self._processes]))
                streams = await self._deliver(streams, body)
                self.batches += len(self._processes)
                await asyncio.sleep(max(0.0, begun + self.interval_s - time.perf_counter()))
        finally:
            streams[1].close()

    async def _deliver(self, streams: _Streams, body: bytes) -> _Streams:
        """Send a request until it is accepted; returns the connection that delivered it."""
        head = (
            f"POST {INGEST_PATH} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: {CONTENT_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        while True:
            reader, writer = streams
            try:
                writer.write(head + body)
                await writer.drain()
                status, answer = await _answer(reader)
            except (ConnectionError, asyncio.IncompleteReadError):  # closed while it was idle, as clients expect
                writer.close()
                streams = await asyncio.open_connection(self._host, self._port)
                continue
            if status == 200:
                self.interval_s = min(max(answer.get("flush_s", 0.0), _FIRST_INTERVAL_S), _LONGEST_INTERVAL_S)
                return streams
            if status not in {429, 503}:
                raise RuntimeError(f"the server responded with {status}: {answer}")
            self.refused += 1
            await asyncio.sleep(_RETRY_S)


async def _answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    length = next(int(line.split(":")[1]) for line in head if line.lower().startswith("content-length:"))
    return int(head[0].split()[1]), msgspec.json.decode(await reader.readexactly(length))
