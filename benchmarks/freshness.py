"""The latency from an event to its appearance on the page.

A process records events. A client does what the page does: it listens to the live stream, and when something
changes, it queries the events.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from benchmarks.harness import Figure, Options, say
from benchmarks.ingest import record_spans, recording
from benchmarks.server_process import ServerProcess, connect, running_server

NAME = "freshness"

_RUN = "freshness"
_EVENT = "tick"
_BETWEEN_EVENTS_S = 0.137
"""Not synchronized with the recorder's flushes, nor with the stream."""
_LOAD_PER_S = 20_000
_BUDGET_S = 1.5


def run(options: Options) -> Iterator[Figure]:
    """Measure in an otherwise idle run, and while many spans arrive."""
    events = 30 if options.quick else 300
    for name, spans_per_s in (("", 0), (f", while {_LOAD_PER_S:,} spans/s arrive", _LOAD_PER_S)):
        say(f"freshness: {events} events{name}")
        with running_server() as server:
            took = sorted(_watch(server, events, spans_per_s))
        yield Figure(f"event to page{name}, p95", took[int(len(took) * 0.95)], "s", budget=_BUDGET_S)
        yield Figure(f"event to page{name}, median", statistics.median(took), "s")


def _watch(server: ServerProcess, events: int, spans_per_s: int) -> list[float]:
    """Return the seconds from each event to the response that contains it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_record, args=(server.url, events, spans_per_s, theirs))
    child.start()
    ours.recv()
    took: dict[int, float] = {}
    try:
        for _ in _changes(server.url):
            found = server.get_json("/api/v1/events", run=_RUN, limit=200)
            seen = time.time_ns()
            for event in found:
                if event["name"] != _EVENT:
                    continue
                took.setdefault(event["attributes"]["number"], (seen - event["attributes"]["recorded_ns"]) / 1e9)
            if len(took) == events:
                return list(took.values())
    finally:
        ours.send("stop")
        child.join()
    raise RuntimeError(f"the stream ended with {len(took)} of {events} events seen.")


def _changes(url: str) -> Iterator[None]:
    """Yield whenever the live stream reports a change of the run."""
    connection = connect(url)
    connection.request("GET", f"/api/v1/live?run={_RUN}&after=0")
    stream = connection.getresponse()
    while line := stream.readline():
        if line.startswith(b"event: change"):
            yield


def _record(url: str, events: int, spans_per_s: int, control: Connection) -> None:
    with recording(url, _RUN, rank=0) as monitor:
        # The first batch creates the run file; the figure is for an existing run.
        monitor.trace_event("begin", number=-1, recorded_ns=time.time_ns())
        monitor.flush()
        control.send("ready")
        begun = time.perf_counter()
        for number in range(events):
            monitor.trace_event(_EVENT, number=number, recorded_ns=time.time_ns())
            record_spans(monitor, int(spans_per_s * _BETWEEN_EVENTS_S))
            time.sleep(max(0.0, begun + (number + 1) * _BETWEEN_EVENTS_S - time.perf_counter()))
        control.recv()
