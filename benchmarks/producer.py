"""The cost of recording in a training process, compared with peer libraries in the same run."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

from benchmarks.harness import Figure, Loop, Options, measure_calls, say
from benchmarks.sink import Sink, Totals, running_sink
from rl_insight.monitor import Monitor

NAME = "producer"

_EVENTS_PER_S = 50_000
_WINDOW_NS = 1_000_000


def run(options: Options) -> Iterator[Figure]:
    """Measure every producer budget."""
    rounds = 30 if options.quick else 400
    say("producer: metric calls")
    yield from _metric_calls(rounds)
    say("producer: spans")
    yield from _span_calls(rounds)
    say("producer: disabled calls")
    yield from _disabled_calls(rounds)
    with running_sink() as sink:
        say("producer: CPU time to the socket")
        yield from _total_processor_time(sink, seconds=0.3 if options.quick else 2.0, rounds=2 if options.quick else 5)
        say("producer: pauses of a busy thread")
        yield from _pauses(sink, seconds=0.5 if options.quick else 2.0, rounds=2 if options.quick else 9)
    say("producer: import time")
    yield from _import_time(rounds=3 if options.quick else 15)


@contextlib.contextmanager
def recording(server: dict[str, Any]) -> Iterator[Monitor]:
    """Record with a separate monitor for a `with` block."""
    monitor = Monitor()
    with tempfile.TemporaryDirectory() as spool:
        monitor.init(config={"server": server, "http": {"spool_dir": spool}})
        try:
            yield monitor
        finally:
            monitor.finish()


# -- the caller's thread


def _metric_calls(rounds: int) -> Iterator[Figure]:
    with recording({"backend": "none"}) as monitor, _open_telemetry_counter() as counter:
        metric_count = monitor.metric_count
        prometheus = _prometheus_counter()

        def ours(calls: int) -> None:
            for _ in range(calls):
                metric_count("rollouts", a="0", b="math")

        def prometheus_client(calls: int) -> None:
            for _ in range(calls):
                prometheus.labels(a="0", b="math").inc()

        def open_telemetry(calls: int) -> None:
            for _ in range(calls):
                counter.add(1, {"a": "0", "b": "math"})

        costs = measure_calls(
            {"ours": ours, "prometheus_client": prometheus_client, "opentelemetry": open_telemetry},
            rounds=rounds,
            between=monitor.flush,
        )
        _check_nothing_lost(monitor)
    yield Figure("metric_count, 2 labels", costs["ours"], "ns")
    yield Figure("prometheus_client labels().inc()", costs["prometheus_client"], "ns")
    yield Figure("OpenTelemetry counter.add", costs["opentelemetry"], "ns")
    yield Figure("metric_count / prometheus_client", costs["ours"] / costs["prometheus_client"], "x", budget=1 / 4)
    yield Figure("metric_count / OpenTelemetry", costs["ours"] / costs["opentelemetry"], "x", budget=1 / 15)


def _prometheus_counter() -> Any:
    from prometheus_client import CollectorRegistry, Counter

    return Counter("rollouts", "", ["a", "b"], registry=CollectorRegistry())


@contextlib.contextmanager
def _open_telemetry_counter() -> Iterator[Any]:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    provider = MeterProvider(metric_readers=[InMemoryMetricReader()])
    yield provider.get_meter("benchmarks").create_counter("rollouts")
    provider.shutdown()


def _span_calls(rounds: int) -> Iterator[Figure]:
    with recording({"backend": "none"}) as monitor, open_telemetry_tracer() as (tracer, drain_tracer):
        floor = FloorTracer()

        def drain() -> None:
            monitor.flush()
            drain_tracer()
            floor.buffer.clear()

        def floor_span(calls: int) -> None:
            for _ in range(calls):
                with FloorSpan(floor, "generate", {"tokens": 512, "model": "policy", "turn": 3}):
                    pass

        def open_telemetry(calls: int) -> None:
            start = tracer.start_as_current_span
            for _ in range(calls):
                with start("generate", attributes={"tokens": 512, "model": "policy", "turn": 3}):
                    pass

        contenders = {"floor": floor_span, "opentelemetry": open_telemetry, **_span_loops(monitor)}
        costs = measure_calls(contenders, rounds=rounds, between=drain)
        _check_nothing_lost(monitor)
    yield Figure("bare floor of a span", costs["floor"], "ns")
    yield Figure("OpenTelemetry span", costs["opentelemetry"], "ns")
    for name in ("trace_span", "trace_state", "trace_op"):
        yield Figure(f"{name}, 3 attributes", costs[name], "ns")
        yield Figure(f"{name} / OpenTelemetry", costs[name] / costs["opentelemetry"], "x", budget=1 / 10)
        yield Figure(f"{name} / floor", costs[name] / costs["floor"], "x", budget=2.5)


def _span_loops(monitor: Monitor) -> dict[str, Loop]:
    trace_span, trace_state = monitor.trace_span, monitor.trace_state

    def span(calls: int) -> None:
        for _ in range(calls):
            with trace_span("generate", {"tokens": 512, "model": "policy", "turn": 3}):
                pass

    def state(calls: int) -> None:
        for _ in range(calls):
            with trace_state("generate", tokens=512, model="policy", turn=3):
                pass

    decorated = monitor.trace_op("generate", tokens=512, model="policy", turn=3)(_nothing)

    def operation(calls: int) -> None:
        for _ in range(calls):
            decorated()

    return {"trace_span": span, "trace_state": state, "trace_op": operation}


class FloorTracer:
    """The minimum that a tracer needs: ids, a current span, a list of finished spans."""

    def __init__(self) -> None:
        self.next_id = itertools.count(1).__next__
        self.current: ContextVar[FloorSpan | None] = ContextVar("floor_span", default=None)
        self.now = time.perf_counter_ns
        self.buffer: deque[FloorSpan] = deque()


class FloorSpan:
    """The minimum cost of a span in plain Python: no lane, no step, no limits, nothing that could fail."""

    __slots__ = ("_token", "_tracer", "attributes", "end", "name", "parent_id", "span_id", "start", "trace_id")

    def __init__(self, tracer: FloorTracer, name: str, attributes: dict[str, Any]) -> None:
        self._tracer = tracer
        self.name = name
        self.attributes = attributes

    def __enter__(self) -> FloorSpan:
        tracer = self._tracer
        self.span_id = tracer.next_id()
        parent = tracer.current.get()
        if parent is None:
            self.parent_id = 0
            self.trace_id = self.span_id
        else:
            self.parent_id = parent.span_id
            self.trace_id = parent.trace_id
        self._token: Token[FloorSpan | None] = tracer.current.set(self)
        self.start = tracer.now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tracer = self._tracer
        self.end = tracer.now()
        tracer.current.reset(self._token)
        tracer.buffer.append(self)


@contextlib.contextmanager
def open_telemetry_tracer() -> Iterator[tuple[Any, Callable[[], Any]]]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class NoExporter(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            del spans
            return SpanExportResult.SUCCESS

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            del timeout_millis
            return True

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(NoExporter()))
    yield provider.get_tracer("benchmarks"), provider.force_flush
    provider.shutdown()


def _disabled_calls(rounds: int) -> Iterator[Figure]:
    monitor = Monitor()
    monitor.init(config={"enabled": False})
    metric_count = monitor.metric_count

    def empty(calls: int) -> None:
        for _ in range(calls):
            _nothing()

    def metric(calls: int) -> None:
        for _ in range(calls):
            metric_count("rollouts", a="0", b="math")

    contenders = {"empty": empty, "metric_count": metric, **_span_loops(monitor)}
    costs = measure_calls(contenders, rounds=rounds)
    yield Figure("empty function call", costs["empty"], "ns")
    yield Figure("disabled metric_count / empty call", costs["metric_count"] / costs["empty"], "x", budget=8)
    for name in ("trace_span", "trace_state", "trace_op"):
        yield Figure(f"disabled {name} / empty call", costs[name] / costs["empty"], "x", budget=15)


def _nothing() -> None:
    pass


# -- the whole process


def _total_processor_time(sink: Sink, *, seconds: float, rounds: int) -> Iterator[Figure]:
    for what, budget_us in (("metric event", 1.8), ("span", 5.0)):
        costs = [_processor_time_per_event(sink, what, seconds) for _ in range(rounds)]
        yield Figure(f"CPU time per {what}, all threads, to the socket", statistics.median(costs), "us", budget_us)


def _processor_time_per_event(sink: Sink, what: str, seconds: float) -> float:
    """Return the CPU microseconds of all threads per event, at a steady rate, until the sink has acknowledged it."""
    with recording({"backend": "http", "url": sink.url}) as monitor:
        record = _span_loops(monitor)["trace_span"] if what == "span" else _metric_loop(monitor)
        burst = _EVENTS_PER_S // 100
        bursts = int(seconds * 100)
        monitor.flush()
        before = time.process_time()
        begun = time.perf_counter()
        for number in range(1, bursts + 1):
            record(burst)
            time.sleep(max(0.0, begun + number * 0.01 - time.perf_counter()))
        monitor.flush()
        spent = time.process_time() - before
        _check_nothing_lost(monitor)
    _check_arrived(sink.take_totals(), what, burst * bursts)
    return spent / (burst * bursts) * 1e6


def _metric_loop(monitor: Monitor) -> Loop:
    metric_count = monitor.metric_count

    def loop(calls: int) -> None:
        for _ in range(calls):
            metric_count("rollouts", a="0", b="math")

    return loop


def _check_arrived(totals: Totals, what: str, expected: int) -> None:
    arrived = totals.spans if what == "span" else totals.counters.get("rollouts", 0.0)
    if arrived != expected:
        raise RuntimeError(f"{expected} events were recorded, {arrived} arrived: the figure would be meaningless.")


def _check_nothing_lost(monitor: Monitor) -> None:
    losses = monitor.get_status()["losses"]
    if losses:
        raise RuntimeError(f"events were lost while measuring: {losses}. The figure would be meaningless.")


def _pauses(sink: Sink, *, seconds: float, rounds: int) -> Iterator[Figure]:
    """Measure how long a thread that never waits is kept from running, with and without recording.

    A machine that does other work pauses the thread too. The budget applies to the median round; the quietest round
    and the same loop without recording are also shown.
    """
    alone: list[float] = []
    recorded: dict[str, list[float]] = {what: [] for what in _EVENT_MIXES}
    for _ in range(rounds):
        alone.append(_worst_gaps(lambda _calls: None, seconds))
        for what, make_loop in _EVENT_MIXES.items():
            with recording({"backend": "http", "url": sink.url}) as monitor:
                recorded[what].append(_worst_gaps(make_loop(monitor), seconds))
                _check_nothing_lost(monitor)
            sink.take_totals()
    for what, results in {"without recording": alone, **recorded}.items():
        name = f"pause of a busy thread, {what}, p99.9"
        yield Figure(name, statistics.median(results), "ms", budget=None if results is alone else 2.0)
        yield Figure(f"{name}, quietest round", min(results), "ms")


def _mixed_loop(monitor: Monitor) -> Loop:
    """One event in ten is a span, as in code that traces operations and counts their parts."""
    metric, span = _metric_loop(monitor), _span_loops(monitor)["trace_span"]
    turn = itertools.cycle([metric] * 9 + [span]).__next__

    def loop(calls: int) -> None:
        turn()(calls)

    return loop


_EVENT_MIXES: dict[str, Callable[[Monitor], Loop]] = {
    "50,000/s metric events": _metric_loop,
    "50,000/s events (1 in 10 a span)": _mixed_loop,
    "50,000/s spans": lambda monitor: _span_loops(monitor)["trace_span"],
}


def _worst_gaps(record: Loop, seconds: float) -> float:
    """Return the p99.9, in milliseconds, of the longest gap in each millisecond of a loop that reads the clock."""
    now = time.perf_counter_ns
    worst: list[int] = []
    interval = 1_000_000_000 // _EVENTS_PER_S
    previous = now()
    end = previous + int(seconds * 1e9)
    next_event, window_end, longest = previous + interval, previous + _WINDOW_NS, 0
    while previous < end:
        if previous >= next_event:
            record(1)
            next_event += interval
        reading = now()
        longest = max(longest, reading - previous)
        if reading >= window_end:
            worst.append(longest)
            window_end, longest = reading + _WINDOW_NS, 0
        previous = reading
    worst.sort()
    return worst[int(len(worst) * 0.999)] / 1e6


# -- start


def _import_time(rounds: int) -> Iterator[Figure]:
    taken: dict[str, list[float]] = {"": [], "rl_insight": [], "json, logging, asyncio": []}
    for _ in range(rounds):
        for modules, results in taken.items():
            results.append(_timed_import(modules))
    costs = {modules: statistics.median(results) for modules, results in taken.items()}
    ours, others = costs["rl_insight"] - costs[""], costs["json, logging, asyncio"] - costs[""]
    yield Figure("import rl_insight", ours, "ms", budget=60)
    yield Figure("import json, logging, asyncio", others, "ms")
    yield Figure("import rl_insight / import json, logging, asyncio", ours / others, "x")


def _timed_import(modules: str) -> float:
    statement = f"import {modules}" if modules else "pass"
    program = f"import time; start = time.perf_counter(); {statement}; print((time.perf_counter() - start) * 1000)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(finished.stdout)
