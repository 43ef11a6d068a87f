"""Metrics and logs as OTLP, over both protocols, and back into our own server."""

from __future__ import annotations

import json
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, ScopeMetrics

from rl_insight.collector import Collector
from rl_insight.collector.sinks.memory import MemorySink
from rl_insight.collector.sinks.otlp import OtlpLogSink, OtlpMetricSink, OtlpSink, OtlpTraceSink, otlp_sinks
from rl_insight.errors import ConfigError, TransportError
from rl_insight.metrics import HISTOGRAM, Distribution, Family, Point
from rl_insight.otlp.encode.protobuf import encode_family
from rl_insight.schema.histogram import bucket_code, lower_bound, upper_bound


def plain(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


def attributes(pairs):
    return {pair.key: plain(pair.value) for pair in pairs}


def export(sink, *batches):
    for batch in batches:
        sink.write(batch)
    sink.flush()
    sink.close()


def metrics_of(request):
    return {
        metric.name: metric
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_counter_is_a_cumulative_monotonic_sum_since_the_process_started(otlp_receiver, fake_process):
    process = fake_process(started_ns=1_000)
    process.count("steps", 3, documentation="Steps done.", role="trainer").count("steps", 2, role="rollout")
    export(OtlpMetricSink(otlp_receiver.url), process.batch())
    (request,) = otlp_receiver.requests
    metric = metrics_of(request)["steps"]
    assert metric.description == "Steps done."
    assert metric.sum.is_monotonic
    assert metric.sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    points = {attributes(point.attributes)["role"]: point for point in metric.sum.data_points}
    assert {role: point.as_double for role, point in points.items()} == {"trainer": 3.0, "rollout": 2.0}
    assert points["trainer"].start_time_unix_nano == 1_000
    resource = attributes(request.resource_metrics[0].resource.attributes)
    assert (resource["rl.run.id"], resource["service.instance.id"]) == ("r1", "p1")


def test_gauge_keeps_each_value_with_its_time(otlp_receiver, fake_process):
    process = fake_process().gauge("reward", 0.5, time_ns=5).gauge("reward", math.inf, time_ns=6)
    process.gauge("reward", math.nan, time_ns=7)
    export(OtlpMetricSink(otlp_receiver.url), process.batch())
    points = metrics_of(otlp_receiver.requests[0])["reward"].gauge.data_points
    assert [(point.time_unix_nano, point.as_double) for point in points[:2]] == [(5, 0.5), (6, math.inf)]
    assert math.isnan(points[2].as_double)


def test_histogram_is_exponential_with_count_sum_and_extremes(otlp_receiver, fake_process):
    export(OtlpMetricSink(otlp_receiver.url), fake_process().observe("latency", 1.5, 1.5, 0.0, -2.5, rank="0").batch())
    histogram = metrics_of(otlp_receiver.requests[0])["latency"].exponential_histogram
    assert histogram.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    (point,) = histogram.data_points
    assert attributes(point.attributes) == {"rank": "0"}
    assert (point.count, point.sum, point.min, point.max) == (4, 0.5, -2.5, 1.5)
    assert (point.scale, point.zero_count) == (4, 1)
    assert list(point.positive.bucket_counts) == [2]
    assert list(point.negative.bucket_counts) == [1]


def encoded_point(buckets):
    family = Family("m", HISTOGRAM, "", [Point((), Distribution(0, 0.0, buckets))])
    (metric,) = ScopeMetrics.FromString(encode_family(family, 0).encoded).metrics
    (point,) = metric.exponential_histogram.data_points
    return point


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12), max_size=20))
def test_buckets_are_those_of_scale_4_without_loss(observed):
    buckets = {}
    for value in observed:
        buckets[bucket_code(value)] = buckets.get(bucket_code(value), 0) + 1
    point = encoded_point(buckets)
    base = 2.0 ** (2.0**-point.scale)
    found = {0: point.zero_count} if point.zero_count else {}
    for sign, side in ((1, point.positive), (-1, point.negative)):
        for place, count in enumerate(side.bucket_counts):
            if count:
                index = side.offset + place
                code = sign * (32768 + index)
                found[code] = count
                ends = sorted(abs(end) for end in (lower_bound(code), upper_bound(code)))
                assert ends == pytest.approx([base**index, base ** (index + 1)], rel=1e-9, abs=0.0)
    assert found == buckets


def test_bucket_codes_beyond_all_numbers_do_not_blow_up_a_request():
    point = encoded_point({2**31 - 1: 1, 1: 2, -(2**31): 3})
    assert point.ByteSize() < 100_000
    assert (sum(point.positive.bucket_counts), sum(point.negative.bucket_counts)) == (3, 3)


def test_rows_that_mean_nothing_are_left_out(otlp_receiver, fake_process):
    process = fake_process().gauge("fine", 1.0)
    builder = process.builder
    builder.add_sample(builder.add_series("odd", "summary", "", "{}"), time_ns=1, value=1.0)
    builder.add_sample(builder.add_series("nan", "counter", "", "{}"), time_ns=1, value=math.nan)
    builder.add_sample(builder.add_series("mixed", "histogram", "", "not json"), time_ns=1, value=1.0)
    export(OtlpMetricSink(otlp_receiver.url), process.batch())
    assert list(metrics_of(otlp_receiver.requests[0])) == ["fine"]


def test_log_line_carries_severity_span_and_logger(otlp_receiver, fake_process):
    process = fake_process()
    process.log(
        "tool failed",
        level=40,
        time_ns=77,
        logger="tools",
        span_id=0xABC,
        trace=(1, 2),
        lane="gpu0",
        step=4,
        session_id="s1",
        attributes=json.dumps({"attempt": 2}),
    )
    process.log("hello", level=25)
    export(OtlpLogSink(otlp_receiver.url), process.batch())
    (resource,) = otlp_receiver.requests[0].resource_logs
    first, second = ((scope.scope.name, record) for scope in resource.scope_logs for record in scope.log_records)
    name, record = first
    assert name == "tools"
    assert (record.body.string_value, record.time_unix_nano) == ("tool failed", 77)
    assert (record.severity_number, record.severity_text) == (17, "ERROR")
    assert (record.span_id.hex(), record.trace_id.hex()) == ("0000000000000abc", f"{1:016x}{2:016x}")
    assert attributes(record.attributes) == {"attempt": 2, "lane": "gpu0", "step": 4, "session_id": "s1"}
    name, record = second
    assert (name, record.severity_number, record.span_id, record.trace_id) == ("", 11, b"", b"")


def test_labels_of_a_process_get_their_semantic_names_too(otlp_receiver, fake_process):
    process = fake_process(labels={"algorithm": "grpo", "model_name": "toy"}).log()
    export(OtlpLogSink(otlp_receiver.url), process.batch())
    resource = attributes(otlp_receiver.requests[0].resource_logs[0].resource.attributes)
    assert resource["rl.algorithm"] == resource["algorithm"] == "grpo"
    assert resource["rl.model.name"] == resource["model_name"] == "toy"


def test_long_batch_is_cut_into_requests(otlp_receiver, fake_process):
    process = fake_process()
    for _ in range(7):
        process.log("x" * 1_000_000)
    sink = OtlpLogSink(otlp_receiver.url)
    export(sink, process.batch())
    sizes = [len(request.resource_logs[0].scope_logs[0].log_records) for request in otlp_receiver.requests]
    assert sizes == [3, 3, 1]
    assert sink.get_status()["sent_records"] == 7


def test_what_a_failed_request_leaves_of_a_batch_is_counted(otlp_receiver, fake_process):
    process = fake_process()
    for number in range(5):
        process.span(span_id=number + 1)
    otlp_receiver.answers = [(400, {}, b"no")]
    sink = OtlpTraceSink(otlp_receiver.url, max_spans=2)
    with pytest.raises(TransportError, match="400 no"):
        sink.write(process.batch())
    status = sink.get_status()
    assert status["lost_spans"] + status["pending_spans"] + status["sent_spans"] == 5
    sink.close()


@pytest.mark.parametrize("suffix", ["", "/", "/v1/traces", "/v1/logs/"])
def test_one_endpoint_serves_all_signals(otlp_receiver, fake_process, suffix):
    batch = fake_process().span().gauge("reward", 1.0).log().batch()
    for sink in otlp_sinks(otlp_receiver.url + suffix):
        export(sink, batch)
    assert otlp_receiver.paths == ["/v1/traces", "/v1/metrics", "/v1/logs"]


def test_endpoint_below_a_path_keeps_it(otlp_receiver, fake_process):
    (sink,) = otlp_sinks(f"{otlp_receiver.url}/otlp?tenant=a", signals=["metrics"])
    export(sink, fake_process().gauge("reward", 1.0).batch())
    assert otlp_receiver.paths == ["/otlp/v1/metrics?tenant=a"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"signals": ["traces", "profiles"]}, "unknown OTLP signal 'profiles'"),
        ({"signals": []}, "no OTLP signal"),
        ({"protocol": "thrift"}, "unknown OTLP protocol 'thrift'"),
    ],
)
def test_option_that_cannot_be_used_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        otlp_sinks("http://127.0.0.1:4318", **options)


def test_grpc_without_grpcio_is_bad_configuration(monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(ConfigError, match=r'grpcio is not installed. Install it: pip install "rl-insight\[grpc\]"'):
        OtlpTraceSink("127.0.0.1:4317", protocol="grpc")


@pytest.mark.parametrize("endpoint", ["", "http://", "ftp://host:1", "host:port"])
def test_grpc_endpoint_that_is_not_an_address_is_refused(endpoint):
    with pytest.raises(ConfigError, match="cannot be the OTLP endpoint"):
        OtlpTraceSink(endpoint, protocol="grpc")


class GrpcReceiver:
    """A gRPC server with the three OTLP services; `failures` are codes and trailing metadata to respond with first."""

    def __init__(self):
        self.requests = []
        self.metadata = []
        self.failures = []
        self.server = grpc.server(ThreadPoolExecutor(4))
        receiver = self

        def servicer(base, answer):
            class Servicer(base):
                def Export(self, request, context):
                    receiver.metadata.append(dict(context.invocation_metadata()))
                    if receiver.failures:
                        code, trailing = receiver.failures.pop(0)
                        context.set_trailing_metadata(trailing)
                        context.abort(code, "not now")
                    receiver.requests.append(request)
                    response = answer()
                    response.partial_success.SetInParent()
                    return response

            return Servicer()

        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(
            servicer(trace_service_pb2_grpc.TraceServiceServicer, trace_service_pb2.ExportTraceServiceResponse),
            self.server,
        )
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(
            servicer(metrics_service_pb2_grpc.MetricsServiceServicer, metrics_service_pb2.ExportMetricsServiceResponse),
            self.server,
        )
        logs_service_pb2_grpc.add_LogsServiceServicer_to_server(
            servicer(logs_service_pb2_grpc.LogsServiceServicer, logs_service_pb2.ExportLogsServiceResponse),
            self.server,
        )
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def close(self):
        self.server.stop(None).wait()


@pytest.fixture
def grpc_receiver():
    receiver = GrpcReceiver()
    yield receiver
    receiver.close()


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_all_signals_arrive_over_grpc(grpc_receiver, fake_process, scheme):
    batch = fake_process().span("generate").observe("latency", 2.0).log("hello").batch()
    for sink in otlp_sinks(scheme + grpc_receiver.address, protocol="grpc", headers={"Authorization": "Bearer t"}):
        export(sink, batch)
    traces, metrics, logs = grpc_receiver.requests
    assert traces.resource_spans[0].scope_spans[0].spans[0].name == "generate"
    assert metrics_of(metrics)["latency"].exponential_histogram.data_points[0].count == 1
    assert logs.resource_logs[0].scope_logs[0].log_records[0].body.string_value == "hello"
    assert {metadata["authorization"] for metadata in grpc_receiver.metadata} == {"Bearer t"}


def retry_info(seconds):
    """Return a `google.rpc.Status` that requests a retry after some seconds."""
    duration = b"\x08" + bytes([seconds])
    detail = (
        b"\x0a\x28type.googleapis.com/google.rpc.RetryInfo\x12" + bytes([len(duration) + 2]) + b"\x0a\x02" + duration
    )
    return b"\x08\x08\x1a" + bytes([len(detail)]) + detail


def test_grpc_trouble_that_passes_is_retried(grpc_receiver, fake_process):
    exhausted = (("grpc-status-details-bin", retry_info(0)),)
    grpc_receiver.failures = [(grpc.StatusCode.UNAVAILABLE, ()), (grpc.StatusCode.RESOURCE_EXHAUSTED, exhausted)]
    sink = OtlpTraceSink(grpc_receiver.address, protocol="grpc")
    export(sink, fake_process().span().batch())
    assert len(grpc_receiver.requests) == 1
    assert sink.get_status()["retries"] == 2


@pytest.mark.parametrize(
    ("code", "trailing"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, ()),
        (grpc.StatusCode.UNAUTHENTICATED, ()),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ()),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, (("grpc-status-details-bin", b"\xff\xff"),)),
    ],
)
def test_grpc_refusal_is_not_retried_and_counted(grpc_receiver, fake_process, code, trailing):
    grpc_receiver.failures = [(code, trailing)]
    sink = OtlpTraceSink(grpc_receiver.address, protocol="grpc")
    sink.write(fake_process().span().batch())
    with pytest.raises(TransportError, match=f"{code.name} not now"):
        sink.flush()
    status = sink.get_status()
    assert (status["lost_spans"], status["retries"]) == (1, 0)
    sink.close()


def test_grpc_receiver_that_comes_back_gets_what_waited(fake_process, wait_until):
    first = GrpcReceiver()
    address = first.address
    first.close()
    sink = OtlpTraceSink(address, protocol="grpc", flush_interval_s=0.01)
    collector = Collector([sink])
    collector.ingest(fake_process().span().payload())
    wait_until(lambda: sink.get_status()["retries"] >= 1)
    second = grpc.server(ThreadPoolExecutor(1))
    taken = []
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: taken.append(request) or b"")
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    second.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))
    second.add_insecure_port(address)
    second.start()
    wait_until(lambda: sink.get_status()["sent_spans"] == 1)
    assert len(taken) == 1
    collector.close()
    second.stop(None).wait()


def test_receiver_that_never_answers_delays_nobody_else(otlp_receiver, fake_process, wait_until):
    otlp_receiver.may_answer.clear()
    memory = MemorySink()
    sinks = otlp_sinks(otlp_receiver.url, flush_interval_s=0.01)
    collector = Collector([*sinks, memory])
    process = fake_process()
    for number in range(20):
        collector.ingest(process.span(span_id=number + 1).gauge("reward", 1.0).log().payload())
    wait_until(lambda: len(memory.batches) == 20)
    assert otlp_receiver.requests == []
    otlp_receiver.may_answer.set()
    collector.close()
    assert len(otlp_receiver.spans) == 20
    assert {sink.get_status()["retries"] for sink in sinks} == {0}


@pytest.fixture
def start_our_server(tmp_path, wait_until):
    """Start our own OTLP receiver over gRPC in this process."""
    config = pytest.importorskip("rl_insight.server.config")
    from rl_insight.server.otlp.grpc_server import OtlpGrpcServer
    from rl_insight.server.services import Services

    services = Services(config.load_settings(options={"data_dir": str(tmp_path)}))
    server = OtlpGrpcServer(services, "127.0.0.1", 0)
    yield services, f"127.0.0.1:{server.port}"
    server.close()
    services.close()


def test_everything_survives_the_way_into_our_own_server(start_our_server, fake_process, wait_until):
    services, address = start_our_server
    now = time.time_ns()
    process = fake_process("p1", role="rollout", rank=3)
    process.span("rollout", span_id=5, trace=(0, 9), start_ns=now, segment="state_interval", lane="gpu0", step=2)
    process.span("wait", span_id=6, parent_id=5, trace=(0, 9), start_ns=now, status="error", error="ValueError")
    process.event("mark", span_id=5, trace=(0, 9), time_ns=now)
    process.log("hello", level=30, time_ns=now, logger="tools", span_id=5, trace=(0, 9))
    observed = [0.5, 3.0, 700.0, 0.0, -1.0]
    process.count("steps", 7, role="x").gauge("reward", 0.25).observe("latency", *observed)
    batch = process.batch()
    for sink in otlp_sinks(address, protocol="grpc"):
        export(sink, batch)
        assert sum(value for key, value in sink.get_status().items() if key.startswith(("rejected", "lost"))) == 0

    def ask(sql):
        with services.runs.open("r1") as store, store.reader() as cursor:
            return cursor.execute(sql).fetchall()

    spans = ask("SELECT name, lane, status, error, step FROM spans ORDER BY span_id")
    assert spans == [("rollout", "gpu0", "ok", None, 2), ("wait", None, "error", "ValueError", None)]
    assert ask("SELECT name FROM events") == [("mark",)]
    assert ask("SELECT level, logger, message FROM logs") == [(30, "tools", "hello")]
    wait_until(lambda: len(services.collector.series) == 3)
    families = {family.name: family for family in services.collector.series.families()}
    assert families["steps"].points[0].value == 7.0
    assert families["reward"].points[0].value == 0.25
    ((labels, distribution, _),) = families["latency"].points
    assert distribution.buckets == {bucket_code(value): 1 for value in observed}
    assert (distribution.count, distribution.sum) == (5, sum(observed))
    assert ("run_id", "r1") in labels


def test_every_signal_has_a_sink_of_its_own_name():
    sinks = otlp_sinks("http://127.0.0.1:1")
    assert [sink.name for sink in sinks] == ["otlp_traces", "otlp_metrics", "otlp_logs"]
    assert all(isinstance(sink, OtlpSink) for sink in sinks)
