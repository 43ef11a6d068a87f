"""How many spans a server takes: from four recording processes, from OpenTelemetry SDKs, and ready-made."""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from benchmarks.harness import Figure, Options, say
from benchmarks.server_process import ServerProcess, connect, running_server

NAME = "ingest"

_PROCESSES = 4
_OFFERED_PER_S = 120_000
"""More than the budget asks for, so that a server that only just follows shows it."""
_MEBIBYTE = 1024 * 1024
_RECORDER_RUN, _SDK_RUN, _READY_MADE_RUN = "recorders", "sdks", "ready-made"
_CLOSED_LOOP_SPANS = 2_000
_READY_MADE_SPANS = 3_000


def run(options: Options) -> Iterator[Figure]:
    """Measure every way in, each against a fresh server."""
    seconds = 10 if options.quick else 60
    with running_server() as server:
        say(f"ingest: {_PROCESSES} processes record {_OFFERED_PER_S:,} spans/s for {seconds} s")
        yield from _recorders(server, seconds)
    with running_server() as server:
        say("ingest: side by side with an OpenTelemetry SDK")
        yield from _side_by_side(server, rounds=2 if options.quick else 6, seconds=2.0 if options.quick else 5.0)
    with running_server() as server:
        say("ingest: ready-made batches, as fast as they are taken")
        yield from _ready_made(server, seconds=3.0 if options.quick else 20.0)


class Recorded(NamedTuple):
    """What one process did; a span that is missing without being counted as lost makes the benchmark fail."""

    spans: int
    lost: int
    processor_s: float


class Totals(NamedTuple):
    """What all processes did together, until a query saw it."""

    spans: int
    lost: int
    seconds: float
    """From the first span to the moment when all were visible."""
    seconds_after: float
    """Of those, the ones after the last span was recorded."""
    processor_s: float
    server_processor_s: float


Work = Callable[[str, int, float, Connection], None]
"""Records for some seconds as process `rank`: says that it is ready, waits for a word, and sends a `Recorded`."""


def _recorders(server: ServerProcess, seconds: float) -> Iterator[Figure]:
    totals = _record_in_processes(server, _record_steadily, _RECORDER_RUN, seconds, before=0)
    yield Figure(f"spans from {_PROCESSES} processes to visible", totals.spans / totals.seconds, "/s", 100_000, True)
    yield Figure("spans lost on the way", totals.lost, "spans", budget=0)
    yield Figure("server memory, peak", server.peak_memory_bytes() / _MEBIBYTE, "MiB", budget=1024)
    yield Figure("last span recorded to all visible", totals.seconds_after, "s")
    yield Figure("processor time of the recording processes", totals.processor_s / totals.spans * 1e6, "us/span")
    yield Figure("processor time of the server", totals.server_processor_s / totals.spans * 1e6, "us/span")


def _side_by_side(server: ServerProcess, rounds: int, seconds: float) -> Iterator[Figure]:
    """Let both record in turns as fast as their own delivery lets them, so that neither loses anything."""
    ours: list[Totals] = []
    sdks: list[Totals] = []
    for _ in range(rounds):
        for work, run_id, results in ((_record_in_turns, "turns", ours), (_export_with_sdk, _SDK_RUN, sdks)):
            before = sum(totals.spans for totals in results)
            results.append(_record_in_processes(server, work, run_id, seconds, before))
    our_rate = statistics.median(totals.spans / totals.seconds for totals in ours)
    sdk_rate = statistics.median(totals.spans / totals.seconds for totals in sdks)
    yield Figure("spans to visible, recording as fast as it goes", our_rate, "/s")
    yield Figure("the same with OpenTelemetry SDKs (OTLP over HTTP)", sdk_rate, "/s")
    yield Figure("ours / OpenTelemetry SDK", our_rate / sdk_rate, "x")
    per_core = [totals.spans / totals.server_processor_s for totals in sdks]
    name = "OTLP spans to visible, for each second of server processor time"
    yield Figure(name, statistics.median(per_core), "/s", budget=40_000, at_least=True)


def _record_in_processes(server: ServerProcess, work: Work, run_id: str, seconds: float, before: int) -> Totals:
    """Run some work in several processes at once; `before` says how many spans the run has already."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        pipes: list[Connection] = []
        for rank in range(_PROCESSES):
            ours, theirs = context.Pipe()
            child = context.Process(target=_work, args=(work, server.url, run_id, rank, seconds, theirs))
            child.start()
            stack.callback(child.join)
            theirs.close()
            pipes.append(ours)
        for pipe in pipes:
            pipe.recv()
        processor_s = server.processor_s()
        begun = time.perf_counter()
        for pipe in pipes:
            pipe.send("go")
        results: list[Recorded] = [pipe.recv() for pipe in pipes]
        spans = sum(result.spans for result in results)
        lost = sum(result.lost for result in results)
        seen = server.wait_for_spans(run_id, before + spans - lost)
        return Totals(
            spans=spans,
            lost=lost,
            seconds=seen - begun,
            seconds_after=seen - begun - seconds,
            processor_s=sum(result.processor_s for result in results),
            server_processor_s=server.processor_s() - processor_s,
        )


def _work(work: Any, url: str, run_id: str, rank: int, seconds: float, control: Connection) -> None:
    work(url, run_id, rank, seconds, control)


# -- in the recording processes


@contextlib.contextmanager
def recording(url: str, run_id: str, rank: int) -> Iterator[Any]:
    """Record to a server, with a monitor of its own, for a `with` block."""
    from rl_insight.monitor import Monitor

    monitor = Monitor()
    with tempfile.TemporaryDirectory() as spool:
        config = {"server": {"backend": "http", "url": url}, "http": {"spool_dir": spool}}
        monitor.init("benchmarks", "ingest", config, run_id=run_id, role="worker", rank=rank)
        try:
            yield monitor
        finally:
            monitor.finish()


def record_spans(monitor: Any, count: int) -> None:
    """Record spans as fast as it goes."""
    trace_span = monitor.trace_span
    for _ in range(count):
        with trace_span("generate", {"tokens": 512, "model": "policy", "turn": 3}):
            pass


def _record_steadily(url: str, run_id: str, rank: int, seconds: float, control: Connection) -> None:
    with recording(url, run_id, rank) as monitor:
        control.send("ready")
        control.recv()
        processor_s, begun = time.process_time(), time.perf_counter()
        burst = _OFFERED_PER_S // _PROCESSES // 100
        bursts = int(seconds * 100)
        for number in range(1, bursts + 1):
            record_spans(monitor, burst)
            time.sleep(max(0.0, begun + number * 0.01 - time.perf_counter()))
        monitor.flush(30.0)
        lost = sum(monitor.get_status()["losses"].values())
        control.send(Recorded(burst * bursts, lost, time.process_time() - processor_s))


def _record_in_turns(url: str, run_id: str, rank: int, seconds: float, control: Connection) -> None:
    with recording(url, run_id, rank) as monitor:
        control.send("ready")
        control.recv()
        processor_s, begun = time.process_time(), time.perf_counter()
        count = 0
        while time.perf_counter() < begun + seconds:
            record_spans(monitor, 10 * _CLOSED_LOOP_SPANS)
            monitor.flush(30.0)
            count += 10 * _CLOSED_LOOP_SPANS
        lost = sum(monitor.get_status()["losses"].values())
        control.send(Recorded(count, lost, time.process_time() - processor_s))


def _export_with_sdk(url: str, run_id: str, rank: int, seconds: float, control: Connection) -> None:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # An instance id of its own: the processes of one round are others than those of the next.
    instance = f"{rank}-{time.time_ns()}"
    resource = Resource({"rl.run.id": run_id, "service.name": "worker", "service.instance.id": instance})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
    start = provider.get_tracer("benchmarks").start_as_current_span
    control.send("ready")
    control.recv()
    processor_s, begun = time.process_time(), time.perf_counter()
    count = 0
    while time.perf_counter() < begun + seconds:
        # Its queue holds 2,048 spans and drops what comes when it is full: it is emptied in time.
        for _ in range(_CLOSED_LOOP_SPANS):
            with start("generate", attributes={"tokens": 512, "model": "policy", "turn": 3}):
                pass
        provider.force_flush()
        count += _CLOSED_LOOP_SPANS
    control.send(Recorded(count, 0, time.process_time() - processor_s))
    provider.shutdown()


# -- ready-made batches


def _ready_made(server: ServerProcess, seconds: float) -> Iterator[Figure]:
    """Send batches that were encoded before, from as many senders, to see what the server alone can take."""
    bodies = [_encoded_batches(rank, int(seconds * 60)) for rank in range(_PROCESSES)]
    processor_s = server.processor_s()
    begun = time.perf_counter()
    with ThreadPoolExecutor(_PROCESSES) as pool:
        counts = pool.map(lambda rank: _send(server.url, bodies[rank], begun + seconds), range(_PROCESSES))
        spans = sum(counts)
    seen = server.wait_for_spans(_READY_MADE_RUN, spans)
    used = server.processor_s() - processor_s
    yield Figure("ready-made spans to visible", spans / (seen - begun), "/s")
    yield Figure("ready-made spans for each second of server processor time", spans / used, "/s")
    yield Figure("server memory with ready-made spans, peak", server.peak_memory_bytes() / _MEBIBYTE, "MiB")


def _encoded_batches(rank: int, count: int) -> list[bytes]:
    from benchmarks.make_store import BEGIN_NS, SECOND, span_batch
    from rl_insight.schema import Process, encode, frame

    who = Process(process_id=f"sender-{rank}", run_id=_READY_MADE_RUN, host="node", pid=1000 + rank, rank=rank)
    batches = (
        span_batch(who, number, start_ns=BEGIN_NS + number * SECOND, length_ns=SECOND, spans=_READY_MADE_SPANS)
        for number in range(1, count + 1)
    )
    return [frame(encode(batch)) for batch in batches]


def _send(url: str, bodies: list[bytes], end: float) -> int:
    from rl_insight.transport._http_client import CONTENT_TYPE, INGEST_PATH

    connection = connect(url)
    sent = 0
    for number in range(0, len(bodies) - 3, 3):
        if time.perf_counter() > end:
            break
        body = b"".join(bodies[number : number + 3])
        connection.request("POST", INGEST_PATH, body, {"Content-Type": CONTENT_TYPE})
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the server answered {answer.status}: the figure would mean nothing.")
        sent += 3 * _READY_MADE_SPANS
    connection.close()
    return sent
