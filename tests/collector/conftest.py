"""Fixtures of the collector's tests: processes that make real batches, and real programs to send them to."""

from __future__ import annotations

import gzip
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rl_insight.schema import BatchBuilder, Process, encode
from rl_insight.schema.histogram import bucket_code


class FakeProcess:
    """A process that keeps cumulative metrics and numbers its batches, as the recorder does."""

    def __init__(self, process_id="p1", **fields):
        fields = {"run_id": "r1", "project": "demo", "experiment_name": "grpo", "host": "node0", "pid": 7} | fields
        self.process = Process(process_id=process_id, **fields)
        self.sequence = 0
        self.counters = {}
        self.histograms = {}
        self.builder = BatchBuilder()

    def _series(self, name, kind, labels, documentation):
        return self.builder.add_series(name, kind, documentation, json.dumps(labels))

    def count(self, name, amount=1.0, documentation="", **labels):
        key = (name, json.dumps(labels))
        self.counters[key] = self.counters.get(key, 0.0) + amount
        series = self._series(name, "counter", labels, documentation)
        self.builder.add_sample(series, time_ns=time.time_ns(), value=self.counters[key])
        return self

    def gauge(self, name, value, time_ns=None, documentation="", **labels):
        series = self._series(name, "gauge", labels, documentation)
        self.builder.add_sample(series, time_ns=time_ns or time.time_ns(), value=value)
        return self

    def observe(self, name, *values, documentation="", **labels):
        seen = self.histograms.setdefault((name, json.dumps(labels)), [])
        seen.extend(values)
        buckets = {}
        for value in seen:
            buckets[bucket_code(value)] = buckets.get(bucket_code(value), 0) + 1
        series = self._series(name, "histogram", labels, documentation)
        self.builder.add_histogram(
            series,
            time_ns=time.time_ns(),
            count=len(seen),
            total=sum(seen),
            minimum=min(seen),
            maximum=max(seen),
            buckets=buckets,
        )
        return self

    def span(self, name="work", span_id=1, duration_ns=1_000, **fields):
        fields = {"trace": (0, 1), "start_ns": 1_000_000} | fields
        self.builder.add_span(span_id=span_id, name=name, duration_ns=duration_ns, **fields)
        return self

    def event(self, name="mark", **fields):
        self.builder.add_event(name=name, **({"time_ns": 1_000_500} | fields))
        return self

    def log(self, message="hello", **fields):
        self.builder.add_log(message=message, **({"time_ns": 1, "level": 20} | fields))
        return self

    def batch(self, *, sent_ns=None, losses=(), final=False):
        self.sequence += 1
        builder, self.builder = self.builder, BatchBuilder()
        return builder.build(
            self.process, sequence=self.sequence, sent_ns=sent_ns or time.time_ns(), losses=losses, final=final
        )

    def payload(self, **fields):
        return encode(self.batch(**fields))

    def payloads(self, count):
        return [self.payload() for _ in range(count)]


@pytest.fixture
def fake_process():
    """Make processes: `fake_process("p1").count("steps").payload()`."""
    return FakeProcess


class HttpReceiver:
    """An HTTP server that stores the posted bodies; `answers` are its responses, then 200."""

    def __init__(self):
        self.requests = []
        self.headers = []
        self.paths = []
        self.answers = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.paths.append(self.path)
                receiver.headers.append(dict(self.headers))
                receiver.may_answer.wait(30)
                code, headers, answer = receiver.answers.pop(0) if receiver.answers else (200, {}, b"")
                if code == 200:
                    receiver.requests.append(receiver.decode(self.path, self.headers.get("Content-Encoding"), body))
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def decode(self, path, encoding, body):
        """Return the stored form of a body."""
        return body

    def close(self):
        self.may_answer.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class OtlpReceiver(HttpReceiver):
    """Receives OTLP of all three signals."""

    def decode(self, path, encoding, body):
        body = gzip.decompress(body) if encoding == "gzip" else body
        kinds = {"/v1/metrics": ExportMetricsServiceRequest, "/v1/logs": ExportLogsServiceRequest}
        suffix = next((suffix for suffix in kinds if suffix in path), "")
        return kinds.get(suffix, ExportTraceServiceRequest).FromString(body)

    @property
    def spans(self):
        return [
            span
            for request in self.requests
            if isinstance(request, ExportTraceServiceRequest)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def http_receiver():
    """A receiver of plain HTTP posts on a free port."""
    receiver = HttpReceiver()
    yield receiver
    receiver.close()


@pytest.fixture
def otlp_receiver():
    """An OTLP receiver on a free port."""
    receiver = OtlpReceiver()
    yield receiver
    receiver.close()
