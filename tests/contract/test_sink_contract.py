"""The contract of every sink."""

from __future__ import annotations

import atexit
import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import grpc
import pytest

from rl_insight.collector import Collector, SinkRunner
from rl_insight.collector.derived import DerivedMetrics
from rl_insight.collector.sinks.jsonl import JsonlSink
from rl_insight.collector.sinks.memory import MemorySink
from rl_insight.collector.sinks.otlp import OtlpLogSink, OtlpMetricSink, OtlpTraceSink
from rl_insight.collector.sinks.remote_write import RemoteWriteSink
from rl_insight.integrations.trackers import Tracker, TrackerSink, create_tracker_sink
from rl_insight.schema import OPEN, BatchBuilder, Loss, Process, encode
from rl_insight.schema.histogram import bucket_code


class _Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def receiver():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@cache
def _grpc_receiver():
    """A gRPC server that accepts any call, for the duration of the tests."""
    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    service = "opentelemetry.proto.collector.logs.v1.LogsService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    atexit.register(server.stop, None)
    return f"127.0.0.1:{port}"


class _Remembering(Tracker):
    """A tracker that stores its input."""

    name = "remembering"

    def __init__(self):
        self.rows = []

    def log(self, values, step):
        self.rows.append((dict(values), step))


FACTORIES = {
    "memory": lambda tmp_path, receiver: MemorySink(),
    "jsonl": lambda tmp_path, receiver: JsonlSink(tmp_path / "events.jsonl"),
    "jsonl per run": lambda tmp_path, receiver: JsonlSink(tmp_path, per_run=True),
    "otlp": lambda tmp_path, receiver: OtlpTraceSink(receiver),
    "otlp metrics": lambda tmp_path, receiver: OtlpMetricSink(receiver),
    "otlp logs": lambda tmp_path, receiver: OtlpLogSink(receiver),
    "otlp over grpc": lambda tmp_path, receiver: OtlpLogSink(_grpc_receiver(), protocol="grpc"),
    "remote write": lambda tmp_path, receiver: RemoteWriteSink(receiver),
    "derived": lambda tmp_path, receiver: DerivedMetrics(),
    "tracker": lambda tmp_path, receiver: TrackerSink(_Remembering()),
    "tracker by name": lambda tmp_path, receiver: create_tracker_sink("tensorboard", log_dir=str(tmp_path / "events")),
}


@pytest.fixture(params=list(FACTORIES))
def sink(request, tmp_path, receiver):
    sink = FACTORIES[request.param](tmp_path, receiver)
    yield sink
    sink.close()


def full_batch(sequence=1, **process):
    """Return a batch with rows in every table, including edge cases."""
    builder = BatchBuilder()
    builder.add_span(span_id=1, trace=(1, 2), name="a", start_ns=1, duration_ns=5, attributes='{"k": [1, {"x": null}]}')
    builder.add_span(span_id=2, trace=(0, 0), name="", start_ns=-5, duration_ns=0, attributes="not json")
    builder.add_span(span_id=3, trace=(1, 2), name="open", start_ns=1, duration_ns=OPEN, status="open")
    builder.add_span(span_id=2**64 - 1, trace=(2**64 - 1, 1), name="big", start_ns=2**62, duration_ns=1, step=-7)
    builder.add_event(time_ns=1, name="e", span_id=1, trace=(1, 2))
    builder.add_event(time_ns=-1, name="alone")
    builder.add_log(time_ns=1, level=20, message="line\nbreak \u2028 \x00 \N{SNOWMAN}")
    for value in (1.0, float("nan"), float("inf")):
        builder.add_sample(builder.add_series("g", "gauge", "", '{"a": "b"}'), time_ns=1, value=value)
    histogram = builder.add_series("h", "histogram", "doc", "")
    builder.add_histogram(
        histogram, time_ns=1, count=2, total=3.0, minimum=1.0, maximum=2.0, buckets={bucket_code(1.0): 2}
    )
    process = Process(process_id="p", run_id="r", host="h", pid=1, **process)
    return builder.build(process, sequence=sequence, sent_ns=1, losses=[Loss("spans", "buffer", 1)])


def empty_batch(sequence=1):
    process = Process(process_id="p", run_id="r", host="h", pid=1)
    return BatchBuilder().build(process, sequence=sequence, sent_ns=1)


def test_sink_has_a_name_and_a_flush_interval(sink):
    assert sink.name
    assert sink.flush_interval_s > 0


def test_making_a_sink_begins_nothing(sink, tmp_path):
    assert list(tmp_path.iterdir()) == []
    assert sink.get_status().get("requests", 0) == 0


def test_every_metric_that_a_sink_yields_is_declared(sink):
    sink.write(full_batch())
    declared = {one.name: (one.kind, one.documentation) for one in sink.declarations}
    assert {one.name: (one.kind, one.documentation) for one in sink.families()}.items() <= declared.items()
    sink.drop_run("r")
    assert [point for one in sink.families() for point in one.points if ("run_id", "r") in point.labels] == []


def test_any_valid_batch_is_taken_and_left_unchanged(sink):
    for batch in (full_batch(), empty_batch(2), full_batch(3, rank=0, role="x", labels={"a": "b"})):
        before = encode(batch)
        sink.write(batch)
        sink.flush()
        assert encode(batch) == before


def test_status_is_plain_data_at_any_time(sink):
    json.dumps(sink.get_status())
    sink.write(full_batch())
    json.dumps(sink.get_status())
    sink.close()
    json.dumps(sink.get_status())


def test_flush_without_anything_to_flush_does_nothing(sink):
    sink.flush()
    sink.flush()


def test_close_is_idempotent(sink):
    sink.write(full_batch())
    sink.close()
    sink.close()


def test_sink_behind_a_runner_takes_everything_without_failure(sink):
    runner = SinkRunner(sink)
    for sequence in range(1, 21):
        runner.put(full_batch(sequence), 100)
    runner.close(timeout_s=30.0)
    status = runner.get_status()
    assert (status.written, status.failed, status.dropped, status.last_error) == (20, 0, 0, None)


def test_sink_behind_a_collector_shows_in_its_status(sink):
    collector = Collector([sink])
    collector.ingest(encode(full_batch()))
    assert collector.wait_idle(30.0)
    assert collector.get_status()["sinks"][sink.name]["written"] == 1
    collector.close()
