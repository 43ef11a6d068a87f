"""The capacity of a server: spans from recording processes and OpenTelemetry SDKs, many processes, many series."""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from benchmarks.harness import Figure, Options, say
from benchmarks.server_process import ServerProcess, running_server
from rl_insight.schema import Batch, Process, encode, frame
from rl_insight.schema.bundle import encode_bundle
from rl_insight.transport.ingest_client import IngestClient

NAME = "ingest"

_PROCESSES = 4
_OFFERED_PER_S = 120_000
"""More than the budget requires, to reveal a server that barely keeps up."""
_MEBIBYTE = 1024 * 1024
_RECORDER_RUN, _SDK_RUN, _PREBUILT_RUN = "recorders", "sdks", "prebuilt"
_CLOSED_LOOP_SPANS = 2_000
_PREBUILT_SPANS = 3_000
_SMALL_SPANS = 20
_HUB_BATCHES = 32
_CONNECTIONS = 100
"""Processes send independently, so one commit contains the batches of many."""


def run(options: Options) -> Iterator[Figure]:
    """Measure every ingest path, each with a fresh server."""
    seconds = 10 if options.quick else 60
    with running_server() as server:
        say(f"ingest: {_PROCESSES} processes record {_OFFERED_PER_S:,} spans/s for {seconds} s")
        yield from _recorders(server, seconds)
    with running_server() as server:
        say("ingest: side by side with an OpenTelemetry SDK")
        yield from _side_by_side(server, rounds=2 if options.quick else 6, seconds=2.0 if options.quick else 5.0)
    with running_server() as server:
        say("ingest: OTLP alone")
        yield from _otlp_alone(server, rounds=2 if options.quick else 6, seconds=2.0 if options.quick else 5.0)
    with running_server() as server:
        say("ingest: prebuilt batches, as fast as they are accepted")
        yield from _prebuilt(server, seconds=3.0 if options.quick else 20.0)
    with running_server() as server:
        processes = 200 if options.quick else 1_000
        say(f"ingest: small batches of {processes:,} processes")
        yield from _many_processes(server, processes, rounds=3 if options.quick else 10)
    with running_server() as server:
        series = 5_000 if options.quick else 100_000
        say(f"ingest: {series:,} series")
        yield from _many_series(server, series)


class Recorded(NamedTuple):
    """The result of one process; a span that is missing but not counted as lost fails the benchmark."""

    spans: int
    losses: dict[str, int]
    """By kind and reason."""
    processor_s: float


class Totals(NamedTuple):
    """The results of all processes, until a query sees the spans."""

    spans: int
    """Spans visible to a query; excludes lost ones."""
    lost: int
    seconds: float
    """From the first span until all were visible."""
    seconds_after: float
    """The part after the last span was recorded."""
    processor_s: float
    server_processor_s: float


Work = Callable[[str, str, int, float, Connection], None]
"""Records for some seconds as process `rank`: reports that it is ready, waits for a message, and sends a `Recorded`."""


def _recorders(server: ServerProcess, seconds: float) -> Iterator[Figure]:
    totals = _record_in_processes(server, _record_steadily, _RECORDER_RUN, seconds, before=0)
    yield Figure(f"spans from {_PROCESSES} processes to visible", totals.spans / totals.seconds, "/s", 100_000, True)
    yield Figure("spans lost on the way", totals.lost, "spans", budget=0)
    yield Figure("server memory, peak", server.peak_memory_bytes() / _MEBIBYTE, "MiB", budget=1024)
    yield Figure("last span recorded to all visible", totals.seconds_after, "s")
    yield Figure("CPU time of the recording processes", totals.processor_s / totals.spans * 1e6, "us/span")
    yield Figure("CPU time of the server", totals.server_processor_s / totals.spans * 1e6, "us/span")


def _side_by_side(server: ServerProcess, rounds: int, seconds: float) -> Iterator[Figure]:
    """Let both record alternately, as fast as they can deliver without loss."""
    ours: list[Totals] = []
    sdks: list[Totals] = []
    for _ in range(rounds):
        for work, run_id, results in ((_record_in_turns, "turns", ours), (_export_with_sdk, _SDK_RUN, sdks)):
            before = sum(totals.spans for totals in results)
            results.append(_record_in_processes(server, work, run_id, seconds, before))
    our_rate = statistics.median(totals.spans / totals.seconds for totals in ours)
    sdk_rate = statistics.median(totals.spans / totals.seconds for totals in sdks)
    yield Figure("spans to visible, recording at full speed", our_rate, "/s")
    yield Figure("the same with OpenTelemetry SDKs (OTLP over HTTP)", sdk_rate, "/s")
    yield Figure("ours / OpenTelemetry SDK", our_rate / sdk_rate, "x")


def _otlp_alone(server: ServerProcess, rounds: int, seconds: float) -> Iterator[Figure]:
    """Measure OTLP on an otherwise idle server: diagnosis of other runs continues long after their last span."""
    results: list[Totals] = []
    for _ in range(rounds):
        before = sum(totals.spans for totals in results)
        results.append(_record_in_processes(server, _export_with_sdk, _SDK_RUN, seconds, before))
    per_core = [totals.spans / totals.server_processor_s for totals in results]
    name = "OTLP spans to visible, per second of server CPU time"
    yield Figure(name, statistics.median(per_core), "/s", budget=40_000, at_least=True)


def _record_in_processes(server: ServerProcess, work: Work, run_id: str, seconds: float, before: int) -> Totals:
    """Run work in several processes at once; `before` is the number of spans already in the run."""
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
        losses = sum((Counter(result.losses) for result in results), Counter())
        lost = losses.total()
        if lost:
            say(f"ingest: lost on the way: {dict(losses)}")
        spans = sum(result.spans for result in results) - lost
        seen = server.wait_for_spans(run_id, before + spans)
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
    """Record to a server, with a separate monitor, for a `with` block."""
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
    """Record spans at full speed."""
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
        losses = monitor.get_status()["losses"]
        control.send(Recorded(burst * bursts, losses, time.process_time() - processor_s))


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
        losses = monitor.get_status()["losses"]
        control.send(Recorded(count, losses, time.process_time() - processor_s))


def _export_with_sdk(url: str, run_id: str, rank: int, seconds: float, control: Connection) -> None:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # A new instance id: each round has new processes.
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
        # Its queue holds 2,048 spans and drops further ones when it is full, so it is flushed in time.
        for _ in range(_CLOSED_LOOP_SPANS):
            with start("generate", attributes={"tokens": 512, "model": "policy", "turn": 3}):
                pass
        provider.force_flush()
        count += _CLOSED_LOOP_SPANS
    control.send(Recorded(count, {}, time.process_time() - processor_s))
    provider.shutdown()


# -- prebuilt batches


def _prebuilt(server: ServerProcess, seconds: float) -> Iterator[Figure]:
    """Send batches that were encoded in advance, from as many senders, to measure the capacity of the server alone."""
    requests = [_large_requests(rank, int(seconds * 20)) for rank in range(_PROCESSES)]
    processor_s = server.processor_s()
    begun = time.perf_counter()
    sent = _send_all(server.url, requests, end=begun + seconds)
    spans = sent * 3 * _PREBUILT_SPANS
    seen = server.wait_for_spans(_PREBUILT_RUN, spans)
    used = server.processor_s() - processor_s
    yield Figure("prebuilt spans to visible", spans / (seen - begun), "/s")
    yield Figure("prebuilt spans per second of server CPU time", spans / used, "/s")
    yield Figure("server memory with prebuilt spans, peak", server.peak_memory_bytes() / _MEBIBYTE, "MiB")


def _large_requests(rank: int, count: int) -> list[bytes]:
    from benchmarks.make_store import BEGIN_NS, SECOND, span_batch

    who = _process(rank)
    batches = (
        span_batch(who, number, start_ns=BEGIN_NS + number * SECOND, length_ns=SECOND, spans=_PREBUILT_SPANS)
        for number in range(1, 3 * count + 1)
    )
    frames = list(map(_frame, batches))
    return [b"".join(frames[number : number + 3]) for number in range(0, len(frames), 3)]


def _many_processes(server: ServerProcess, processes: int, rounds: int) -> Iterator[Figure]:
    """Send the batches of processes that record little, first individually, then combined as hubs send them."""
    memory, spans = server.memory_bytes(), 0
    for batches, name, budget in ((1, "one per request", 3_000), (_HUB_BATCHES, f"{_HUB_BATCHES} per request", 8_000)):
        first = 1 if batches == 1 else rounds + 1
        requests = _small_requests(processes, range(first, first + rounds), batches)
        processor_s, begun = server.processor_s(), time.perf_counter()
        _send_all(server.url, requests)
        spans += processes * rounds * _SMALL_SPANS
        seen = server.wait_for_spans(_PREBUILT_RUN, spans)
        used = server.processor_s() - processor_s
        sent = processes * rounds
        yield Figure(f"small batches of {processes:,} processes, {name}", sent / (seen - begun), "/s")
        of_server = f"small batches, {name}, per second of server CPU time"
        yield Figure(of_server, sent / used, "/s", budget=budget, at_least=True)
    yield Figure(f"server memory for {processes:,} processes", (server.memory_bytes() - memory) / _MEBIBYTE, "MiB")


def _small_requests(processes: int, sequences: range, batches: int) -> list[list[bytes]]:
    """Return the requests of each connection, with this many batches combined as hubs do."""
    found = []
    for first in range(_CONNECTIONS):
        ranks = range(first, processes, _CONNECTIONS)
        small = [_small_batch(rank, sequence) for sequence in sequences for rank in ranks]
        groups = [small[number : number + batches] for number in range(0, len(small), batches)]
        found.append([frame(encode_bundle(group)) for group in groups])
    return found


def _small_batch(rank: int, sequence: int) -> Batch:
    """Return a batch of 20 spans and 10 gauges, typical of a process that records little."""
    from rl_insight.schema import BatchBuilder

    builder = BatchBuilder()
    now = time.time_ns()
    for number in range(_SMALL_SPANS):
        builder.add_span(
            span_id=sequence * 100 + number, trace=(rank, sequence), name="generate", start_ns=now, duration_ns=1000
        )
    for number in range(10):
        builder.add_sample(builder.add_series(f"gauge_{number}", "gauge", "", "{}"), time_ns=now, value=0.5)
    return builder.build(_process(rank), sequence=sequence, sent_ns=now)


def _many_series(server: ServerProcess, series: int) -> Iterator[Figure]:
    """Send many label sets, then measure their cost to the server and to queries."""
    memory = server.memory_bytes()
    _send_all(server.url, [_series_requests(series)])
    begun = time.perf_counter()
    size = len(server.get("/metrics"))
    page_s = time.perf_counter() - begun
    begun = time.perf_counter()
    server.get("/api/v1/metrics", run=_PREBUILT_RUN)
    list_s = time.perf_counter() - begun
    yield Figure(f"server memory for {series:,} series", (server.memory_bytes() - memory) / _MEBIBYTE, "MiB")
    yield Figure(f"/metrics with {series:,} series", page_s, "s")
    yield Figure(f"/metrics with {series:,} series, size", size / _MEBIBYTE, "MiB")
    yield Figure(f"list of metrics with {series:,} series", list_s * 1000, "ms")


def _series_requests(series: int) -> list[bytes]:
    """Return one request for each metric of 2,000 label sets, the limit of the recorder's cardinality guard."""
    from rl_insight.schema import BatchBuilder

    requests = []
    for sequence, first in enumerate(range(0, series, 2_000), 1):
        builder = BatchBuilder()
        for number in range(first, min(series, first + 2_000)):
            labels = f'{{"worker":"{number}"}}'
            position = builder.add_series(f"metric_{sequence}", "gauge", "", labels)
            builder.add_sample(position, time_ns=time.time_ns(), value=float(number))
        requests.append(_frame(builder.build(_process(0), sequence=sequence, sent_ns=time.time_ns())))
    return requests


def _process(rank: int) -> Process:
    return Process(process_id=f"sender-{rank}", run_id=_PREBUILT_RUN, host="node", pid=1000 + rank, rank=rank)


def _frame(batch: Batch) -> bytes:
    return frame(encode(batch))


def _send_all(url: str, requests: list[list[bytes]], end: float = float("inf")) -> int:
    """Send lists of requests concurrently, each in order; returns how many were accepted by the end."""
    with ThreadPoolExecutor(len(requests)) as pool:
        return sum(pool.map(lambda bodies: _send(url, bodies, end), requests))


def _send(url: str, bodies: list[bytes], end: float) -> int:
    client = IngestClient(url, token=None, timeout_s=120)
    sent = 0
    for body in bodies:
        if time.perf_counter() > end:
            break
        answer = client.post(body)
        if answer.status != 200:
            raise RuntimeError(f"the server responded with {answer.status}: the figure would be meaningless.")
        sent += 1
    client.close()
    return sent
