"""OTLP ingest: requests from SDKs, curl and our own export become spans, metrics and logs, once."""

import gzip
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from rl_insight.otlp.decode.requests import OtlpSignal
from rl_insight.otlp.encode.items import SCOPE, span_items
from rl_insight.otlp.encode.protobuf import encode_span, request_part
from rl_insight.schema.histogram import bucket_code
from rl_insight.store.errors import StoreError

PROTOBUF = {"Content-Type": "application/x-protobuf"}
NOW = 1_700_000_000_000_000_000
RESOURCE = {"service.name": "rollout", "run_id": "r1", "process.pid": 7, "host.name": "n1"}


def key_values(values):
    return [KeyValue(key=key, value=any_value(value)) for key, value in values.items()]


def any_value(value):
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case list():
            return AnyValue(array_value=ArrayValue(values=map(any_value, value)))
        case dict():
            return AnyValue(kvlist_value=KeyValueList(values=key_values(value)))
    return AnyValue(string_value=value)


def resource(into, attributes=RESOURCE):
    into.resource.attributes.extend(key_values(attributes))
    return into


def span_request(*, name="generate", span_id=b"\1" * 8, trace_id=b"\2" * 16, attributes=None, **fields):
    request = ExportTraceServiceRequest()
    scope = resource(request.resource_spans.add()).scope_spans.add()
    span = scope.spans.add(
        name=name,
        span_id=span_id,
        trace_id=trace_id,
        start_time_unix_nano=NOW,
        end_time_unix_nano=NOW + 500,
        **fields,
    )
    span.attributes.extend(key_values(attributes or {}))
    return request


def metric_request(fill):
    request = ExportMetricsServiceRequest()
    fill(resource(request.resource_metrics.add()).scope_metrics.add().metrics.add())
    return request


def post(client, signal, request, **headers):
    return client.post(f"/v1/{signal}", content=request.SerializeToString(), headers=PROTOBUF | headers)


SPANS = """
    SELECT name, span_id, parent_id, start_ns, duration_ns, segment, lane, status, error, step, session_id, attributes
    FROM spans
"""


def test_a_span_keeps_its_name_times_parent_and_attributes(client, services, query):
    request = span_request(
        parent_span_id=b"\3" * 8,
        kind=3,
        attributes={"tokens": 12, "model": "7b", "ratio": 0.5, "flag": True, "many": [1, "two"], "inner": {"a": 1}},
    )
    answer = post(client, "traces", request)
    assert answer.status_code == 200
    assert ExportTraceServiceResponse.FromString(answer.content) == ExportTraceServiceResponse()
    ((name, span_id, parent, start, duration, segment, lane, status, error, step, session, attributes),) = query(
        services, "r1", SPANS
    )
    assert (name, span_id, parent, start, duration) == ("generate", "01" * 8, "03" * 8, NOW, 500)
    assert (segment, lane, status, error, step, session) == ("duration", None, "ok", None, None, None)
    assert json.loads(attributes) == {
        "tokens": 12,
        "model": "7b",
        "ratio": 0.5,
        "flag": True,
        "many": [1, "two"],
        "inner": {"a": 1},
        "span.kind": "client",
    }
    assert query(services, "r1", "SELECT process_id, role, host, pid FROM processes") == [
        ("rollout-n1-7", "rollout", "n1", 7)
    ]


def test_what_our_own_export_writes_maps_back_to_states_lanes_steps_and_sessions(client, services, query):
    attributes = {
        "monitor.trace_segment": "state_interval",
        "state_name": "rollout",
        "state_lane_id": "lane-4",
        "process_id": "p9",
        "step": 3,
        "session_id": "s-1",
        "monitor.status": "cancelled",
        "error.type": "CancelledError",
        "kept": 1,
    }
    post(client, "traces", span_request(name="anything", attributes=attributes))
    ((name, *_, segment, lane, status, error, step, session, rest),) = query(services, "r1", SPANS)
    assert (name, segment, lane, status, error, step, session) == (
        "rollout",
        "state_interval",
        "lane-4",
        "cancelled",
        "CancelledError",
        3,
        "s-1",
    )
    assert json.loads(rest) == {"kept": 1}


def test_an_error_and_its_exception_event_are_kept(client, services, query):
    request = span_request()
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.status.code, span.status.message = 2, "it broke"
    event = span.events.add(name="exception", time_unix_nano=NOW + 7)
    event.attributes.extend(key_values({"exception.type": "ValueError"}))
    post(client, "traces", request)
    assert query(services, "r1", "SELECT status, error, attributes FROM spans") == [
        ("error", "ValueError", '{"status.message":"it broke"}')
    ]
    assert query(services, "r1", "SELECT time_ns, name, span_id FROM events") == [(NOW + 7, "exception", "01" * 8)]


def test_an_instant_that_was_exported_as_a_span_becomes_an_instant_again(client, services, query):
    attributes = {"monitor.trace_segment": "event", "process_id": "p", "lane": "l1", "k": 1}
    post(client, "traces", span_request(name="checkpoint", parent_span_id=b"\5" * 8, attributes=attributes))
    assert query(services, "r1", "SELECT name, span_id, lane, attributes FROM events") == [
        ("checkpoint", "05" * 8, "l1", '{"k":1}')
    ]


def test_spans_that_cannot_be_taken_are_counted_in_the_answer_and_the_others_stored(client, services, query):
    request = span_request()
    spans = request.resource_spans[0].scope_spans[0].spans
    spans.add(name="no ids", start_time_unix_nano=NOW)
    spans.add(name="no start", span_id=b"\7" * 8, trace_id=b"\2" * 16)
    answer = ExportTraceServiceResponse.FromString(post(client, "traces", request).content)
    assert answer.partial_success.rejected_spans == 2
    assert "span" in answer.partial_success.error_message
    assert query(services, "r1", "SELECT count(*) FROM spans") == [(1,)]


def test_a_sender_that_numbers_nothing_misses_nothing(client):
    for number in range(1, 4):
        post(client, "traces", span_request(span_id=bytes([number]) * 8))
    (process,) = client.get("/api/v1/processes", params={"run": "r1"}).json()
    assert (process["batches"], process["missing_batches"]) == (3, 0)


def test_a_run_whose_sender_makes_no_promises_is_silent_in_less_than_an_hour(client, monkeypatch):
    post(client, "traces", span_request())
    now_ns = time.time_ns
    states = []
    for minutes in (0, 40, 46):
        monkeypatch.setattr(time, "time_ns", lambda minutes=minutes: now_ns() + minutes * 60 * 10**9)
        states.append([run["state"] for run in client.get("/api/v1/runs").json()])
        states.append([process["state"] for process in client.get("/api/v1/processes?run=r1").json()])
    assert states == [["running"], ["live"], ["running"], ["live"], ["silent"], ["silent"]]


def test_a_request_that_is_sent_again_is_stored_once(client, services, query):
    body = span_request().SerializeToString()
    for headers in (PROTOBUF, PROTOBUF, PROTOBUF | {"Content-Encoding": "gzip"}):
        content = gzip.compress(body) if len(headers) > 1 else body
        assert client.post("/v1/traces", content=content, headers=headers).status_code == 200
    assert query(services, "r1", "SELECT count(*) FROM spans") == [(1,)]


def test_a_request_that_is_sent_again_while_the_first_is_being_read_is_stored_once(services, query, monkeypatch):
    body = span_request().SerializeToString()
    is_reading, may_read = threading.Event(), threading.Event()
    convert = services.otlp._convert
    conversions = []

    def slow(*arguments):
        conversions.append(arguments)
        is_reading.set()
        assert may_read.wait(20)
        return convert(*arguments)

    def submit():
        return services.otlp.submit(OtlpSignal.TRACES, body, is_json=False, peer="", route="otlp_http").settle()

    monkeypatch.setattr(services.otlp, "_convert", slow)
    with ThreadPoolExecutor(2) as senders:
        first = senders.submit(submit)
        assert is_reading.wait(20)
        second = senders.submit(submit)
        wait([second], timeout=0.2)
        may_read.set()
        assert first.result(20) == second.result(20)
    assert len(conversions) == 1
    assert query(services, RESOURCE["run_id"], "SELECT count(*) FROM spans") == [(1,)]
    assert services.otlp._converting == {}


def test_a_request_that_failed_is_answered_with_503_and_stored_when_it_is_sent_again(
    client, services, query, monkeypatch
):
    def fail(run_id, group):
        raise StoreError("not now.")

    def fill(metric):
        metric.name = "tokens"
        metric.sum.is_monotonic = True
        metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
        metric.sum.data_points.add(as_int=5, time_unix_nano=NOW)

    request = metric_request(fill)
    with monkeypatch.context() as patched:
        patched.setattr(services.writer, "_write", fail)
        answer = post(client, "metrics", request)
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) >= 1
    assert post(client, "metrics", request).status_code == 200
    assert query(services, "r1", "SELECT value FROM samples") == [(5.0,)]


def test_a_number_of_our_own_that_is_in_use_is_left_behind(client, services, query):
    post(client, "traces", span_request())
    (sender,) = services.otlp._senders.values()
    import itertools

    sender._sequence = itertools.count(sender.next_sequence() - 1)
    second = span_request(span_id=b"\x09" * 8)
    assert post(client, "traces", second).status_code == 503
    assert post(client, "traces", second).status_code == 200
    assert query(services, "r1", "SELECT count(*) FROM spans") == [(2,)]


@pytest.mark.parametrize(
    ("attributes", "run_id"),
    [
        ({"service.name": "vllm", "rl.run.id": "one", "run_id": "two"}, "one"),
        ({"service.name": "vllm", "run_id": "two", "run.id": "three"}, "two"),
        ({"service.name": "xtuner", "run.id": "20260101-120000-7-0a1b2c3d"}, "20260101-120000-7-0a1b2c3d"),
        ({"service.name": "vllm"}, "otlp-vllm-" + time.strftime("%Y%m%d", time.gmtime())),
        ({}, "otlp-unknown_service-" + time.strftime("%Y%m%d", time.gmtime())),
    ],
)
def test_the_resource_names_the_run(client, services, query, attributes, run_id):
    request = span_request()
    del request.resource_spans[0].resource.attributes[:]
    resource(request.resource_spans[0], attributes)
    post(client, "traces", request)
    assert query(services, run_id, "SELECT count(*) FROM spans") == [(1,)]


def test_the_process_is_told_apart_by_its_instance(client, services, query):
    for number, instance in enumerate(["a", "b", "a"]):
        request = span_request(span_id=bytes([number + 1]) * 8)
        resource(request.resource_spans[0], {"service.instance.id": instance, "rank": 3, "project": "math"})
        post(client, "traces", request)
    rows = query(services, "r1", "SELECT process_id, rank, project FROM processes ORDER BY 1")
    assert rows == [("a", 3, "math"), ("b", 3, "math")]


def add_sum(metric, temporality, *points, monotonic=True):
    metric.name, metric.description, metric.unit = "tokens.total", "Tokens", "1"
    metric.sum.is_monotonic = monotonic
    metric.sum.aggregation_temporality = temporality
    for time_ns, start, value in points:
        point = metric.sum.data_points.add(as_double=value, start_time_unix_nano=start, time_unix_nano=time_ns)
        point.attributes.extend(key_values({"worker.id": 3}))


DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


@pytest.mark.parametrize(
    ("temporality", "points", "monotonic", "expected"),
    [
        (CUMULATIVE, [(1, 5.0), (1, 7.0)], True, [5.0, 7.0]),
        (CUMULATIVE, [(1, 5.0), (2, 1.0)], True, [5.0, 6.0]),
        (DELTA, [(1, 5.0), (2, 1.0)], True, [5.0, 6.0]),
        (CUMULATIVE, [(1, 5.0), (1, 3.0)], False, [5.0, 3.0]),
        (DELTA, [(1, 5.0), (2, -3.0)], False, [5.0, 2.0]),
    ],
)
def test_sums_become_totals_of_the_process(client, services, query, temporality, points, monotonic, expected):
    for number, point in enumerate(points):
        timed = (NOW + number, *point)
        post(
            client,
            "metrics",
            metric_request(lambda metric, p=timed: add_sum(metric, temporality, p, monotonic=monotonic)),
        )
    rows = query(services, "r1", "SELECT name, kind, labels, value FROM samples ORDER BY time_ns")
    kind = "counter" if monotonic else "gauge"
    name = "tokens" if monotonic else "tokens_total"
    assert rows == [(name, kind, '{"worker_id":"3"}', value) for value in expected]


def test_a_counter_below_zero_is_rejected(client):
    answer = post(client, "metrics", metric_request(lambda metric: add_sum(metric, CUMULATIVE, (NOW, 1, -1.0))))
    assert ExportMetricsServiceResponse.FromString(answer.content).partial_success.rejected_data_points == 1


def test_gauges_keep_what_json_lacks(client, services, query):
    def fill(metric):
        metric.name = "reward"
        for number, value in enumerate((1.5, float("inf"))):
            metric.gauge.data_points.add(as_double=value, time_unix_nano=NOW + number)
        metric.gauge.data_points.add(as_int=3, time_unix_nano=NOW + 2)
        metric.gauge.data_points.add(as_double=9.0, flags=1)

    post(client, "metrics", metric_request(fill))
    assert query(services, "r1", "SELECT value FROM samples ORDER BY time_ns") == [(1.5,), (float("inf"),), (3.0,)]


def test_histograms_of_both_kinds_become_buckets_of_ours(client, services, query):
    def explicit(metric):
        metric.name = "latency"
        metric.histogram.aggregation_temporality = CUMULATIVE
        metric.histogram.data_points.add(
            count=3, sum=7.0, bucket_counts=[1, 2, 0], explicit_bounds=[1.0, 4.0], time_unix_nano=NOW, min=0.5, max=3.5
        )

    def exponential(metric):
        metric.name = "size"
        metric.exponential_histogram.aggregation_temporality = DELTA
        point = metric.exponential_histogram.data_points.add(count=2, sum=2.0, scale=4, time_unix_nano=NOW)
        point.positive.offset = -1
        point.positive.bucket_counts.extend([2])

    for fill in (explicit, exponential):
        post(client, "metrics", metric_request(fill))
    rows = query(services, "r1", "SELECT name, count, sum, min, max, codes, counts FROM histograms ORDER BY name")
    assert rows[0] == ("latency", 3, 7.0, 0.5, 3.5, [bucket_code(0.5), bucket_code(2.0)], [1, 2])
    assert rows[1][:3] + rows[1][5:] == ("size", 2, 2.0, [bucket_code(1.0)], [2])


def test_a_summary_becomes_gauges_with_its_quantiles(client, services, query):
    def fill(metric):
        metric.name = "ttft"
        point = metric.summary.data_points.add(count=4, sum=2.0, time_unix_nano=NOW)
        point.quantile_values.add(quantile=0.99, value=0.8)

    post(client, "metrics", metric_request(fill))
    assert sorted(query(services, "r1", "SELECT name, labels, value FROM samples")) == [
        ("ttft", '{"quantile":"0.99"}', 0.8),
        ("ttft_count", "{}", 4.0),
        ("ttft_sum", "{}", 2.0),
    ]


BAD_POINTS = {
    "bounds that do not ascend": {"count": 1, "bucket_counts": [1, 0, 0], "explicit_bounds": [2.0, 1.0]},
    "buckets that do not fit": {"count": 1, "bucket_counts": [1], "explicit_bounds": [2.0, 3.0]},
    "a bound that is no number": {"count": 1, "bucket_counts": [1, 0], "explicit_bounds": [float("nan")]},
}


@pytest.mark.parametrize("point", BAD_POINTS.values(), ids=BAD_POINTS)
def test_histograms_that_contradict_themselves_are_rejected(client, point):
    def fill(metric):
        metric.name = "latency"
        metric.histogram.data_points.add(**point)

    answer = post(client, "metrics", metric_request(fill))
    assert ExportMetricsServiceResponse.FromString(answer.content).partial_success.rejected_data_points == 1


@pytest.mark.parametrize("scale", [-(2**31), 2**31 - 1, 21, -11])
def test_a_scale_beyond_reason_is_rejected(client, scale):
    def fill(metric):
        metric.name = "size"
        metric.exponential_histogram.data_points.add(count=1, scale=scale).positive.bucket_counts.extend([1])

    answer = post(client, "metrics", metric_request(fill))
    assert ExportMetricsServiceResponse.FromString(answer.content).partial_success.rejected_data_points == 1


def test_log_records_keep_level_span_and_attributes(client, services, query):
    request = ExportLogsServiceRequest()
    scope = resource(request.resource_logs.add()).scope_logs.add()
    scope.scope.name = "trainer.loop"
    record = scope.log_records.add(
        time_unix_nano=NOW, severity_number=17, span_id=b"\1" * 8, trace_id=b"\2" * 16, event_name="oom"
    )
    record.body.string_value = "out of memory"
    record.attributes.extend(key_values({"gpu": 3, "step": 9}))
    structured = scope.log_records.add(observed_time_unix_nano=NOW + 1, severity_text="warn")
    structured.body.kvlist_value.values.add(key="a").value.int_value = 1
    post(client, "logs", request)
    rows = query(
        services, "r1", "SELECT time_ns, level, logger, message, span_id, step, attributes FROM logs ORDER BY 1"
    )
    assert rows == [
        (NOW, 40, "trainer.loop", "out of memory", "01" * 8, 9, '{"gpu":3,"event.name":"oom"}'),
        (NOW + 1, 30, "trainer.loop", '{"a":1}', None, None, None),
    ]


def as_otlp_json(request):
    """Return a request as OTLP JSON: ids in hexadecimal."""
    text = json_format.MessageToDict(request)
    for spans in text.get("resourceSpans", ()):
        for scope in spans["scopeSpans"]:
            for span, message in zip(scope["spans"], request.resource_spans[0].scope_spans[0].spans, strict=True):
                span["traceId"], span["spanId"] = message.trace_id.hex(), message.span_id.hex()
    return text


def test_json_is_answered_in_json(client, services, query):
    answer = client.post("/v1/traces", json=as_otlp_json(span_request(attributes={"a": 1})))
    assert (answer.status_code, answer.json()) == (200, {})
    assert query(services, "r1", "SELECT span_id, trace_id, attributes FROM spans") == [
        ("01" * 8, "02" * 16, '{"a":1}')
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"null",
        b"{",
        b'{"resourceSpans": 3}',
        b'{"resourceSpans": [3]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz"}]}]}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": "soon"}]}]}]}',
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b"\xff\xfe",
    ],
)
def test_json_that_is_not_a_request_is_a_sentence_in_a_4xx(client, body):
    answer = client.post("/v1/traces", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["message"]


def test_the_error_answer_to_protobuf_is_a_status_message(client):
    answer = client.post("/v1/traces", content=b"\xff\xff\xff", headers=PROTOBUF)
    assert answer.status_code == 400
    assert b"not an OTLP request" in answer.content


@pytest.mark.parametrize("signal", ["traces", "metrics", "logs"])
def test_random_and_truncated_bytes_give_no_5xx_and_the_next_request_is_taken(client, services, query, signal):
    def fill(metric):
        metric.name = "latency"
        metric.histogram.data_points.add(count=3, sum=7.0, bucket_counts=[1, 2, 0], explicit_bounds=[1.0, 4.0])

    good = {
        "traces": span_request(attributes={"a": 1, "b": [1, 2]}),
        "metrics": metric_request(fill),
        "logs": ExportLogsServiceRequest(),
    }[signal].SerializeToString()
    source = random.Random(11)
    for number in range(300):
        body = bytearray(good or b"\n\5abc")
        if number % 3 == 0:
            body = bytearray(source.randbytes(source.randrange(1, 80)))
        for _ in range(source.randrange(0, 4)):
            body[source.randrange(len(body))] = source.randrange(256)
        answer = client.post(
            f"/v1/{signal}", content=bytes(body[: source.randrange(1, len(body) + 1)]), headers=PROTOBUF
        )
        assert answer.status_code in {200, 400}
    assert post(client, "traces", span_request(span_id=b"\x42" * 8)).status_code == 200
    assert query(services, "r1", f"SELECT count(*) FROM spans WHERE span_id = '{'42' * 8}'") == [(1,)]


def test_own_states_survive_export_and_return(services, query):
    """The OTLP sink's output for a batch is ingested as the same spans."""
    from rl_insight.schema import BatchBuilder, Process

    builder = BatchBuilder()
    builder.add_span(
        span_id=5, trace=(1, 2), name="train", start_ns=NOW, duration_ns=10, segment="state_interval", lane="l1", step=4
    )
    builder.add_span(
        span_id=6, trace=(1, 2), parent_id=5, name="op", start_ns=NOW, duration_ns=3, status="error", error="E"
    )
    process = Process(process_id="p1", run_id="r2", host="n", pid=3, role="trainer", rank=1, project="x")
    batch = builder.build(process, sequence=1, sent_ns=NOW)
    message = ResourceSpans.FromString(
        request_part(process, {SCOPE: map(encode_span, span_items(batch))}, "rl_insight_monitor")
    )
    body = ExportTraceServiceRequest(resource_spans=[message]).SerializeToString()
    services.otlp.submit(OtlpSignal.TRACES, body, is_json=False, peer="", route="otlp_http").settle()
    rows = query(services, "r2", "SELECT name, segment, lane, status, error, step, process_id, role, rank FROM spans")
    assert sorted(rows) == [
        ("op", "duration", None, "error", "E", None, "p1", "trainer", 1),
        ("train", "state_interval", "l1", "ok", None, 4, "p1", "trainer", 1),
    ]
