from __future__ import annotations

import json
import socket
from contextlib import closing

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from rl_insight.collector import Collector
from rl_insight.collector.sinks.otlp import OtlpTraceSink
from rl_insight.errors import ConfigError, TransportError
from rl_insight.schema import OPEN


def plain(value):
    """Return an OTLP value as a Python value."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return attributes(value.kvlist_value.values)
    return getattr(value, kind) if kind else None


def attributes(pairs):
    result = {pair.key: plain(pair.value) for pair in pairs}
    assert len(result) == len(pairs), "keys must be unique"
    return result


def export(receiver, *batches):
    sink = OtlpTraceSink(receiver.url)
    for batch in batches:
        sink.write(batch)
    sink.flush()
    sink.close()
    return receiver.spans


def test_span_arrives_with_ids_times_and_typed_attributes(otlp_receiver, fake_process):
    values = {"text": "a", "flag": True, "number": 3, "ratio": 0.5, "nothing": None, "list": [1, "x"], "map": {"k": []}}
    values["large"] = 2**70
    process = fake_process().span(
        "generate",
        span_id=0xABC,
        parent_id=0xDEF,
        trace=(1, 2),
        start_ns=5_000,
        duration_ns=70,
        step=4,
        session_id="s1",
        lane="gpu0",
        attributes=json.dumps(values),
    )
    (span,) = export(otlp_receiver, process.batch())
    assert span.name == "generate"
    assert (span.span_id.hex(), span.parent_span_id.hex()) == ("0000000000000abc", "0000000000000def")
    assert span.trace_id.hex() == "00000000000000010000000000000002"
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (5_000, 5_070)
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert attributes(span.attributes) == values | {
        "large": attributes(span.attributes)["large"],
        "monitor.trace_segment": "duration",
        "process_id": "p1",
        "project": "demo",
        "experiment_name": "grpo",
        "state_lane_id": "gpu0",
        "step": 4,
        "session_id": "s1",
    }
    assert float(attributes(span.attributes)["large"]) == float(2**70)


def test_states_carry_their_name_and_lane_whatever_the_user_says(otlp_receiver, fake_process):
    process = fake_process()
    mine = json.dumps(dict.fromkeys(("state_name", "state_lane_id", "monitor.trace_segment", "process_id"), "mine"))
    process.span("rollout", span_id=1, segment="state_interval", lane="rank0", attributes=mine)
    process.span("wait", span_id=2, segment="state_nested")
    first, second = export(otlp_receiver, process.batch())
    assert attributes(first.attributes) == {
        "monitor.trace_segment": "state_interval",
        "process_id": "p1",
        "project": "demo",
        "experiment_name": "grpo",
        "state_name": "rollout",
        "state_lane_id": "rank0",
    }
    assert attributes(second.attributes)["state_lane_id"] == "7", "the pid"


def test_names_that_the_caller_of_a_span_gave_win(otlp_receiver, fake_process):
    own = {"project": "other", "experiment_name": "ppo", "state_lane_id": "experiment=ppo/traj=1", "global_steps": 7}
    own["process_id"] = "77"
    process = fake_process().span("gateway_generation", lane="lane", attributes=json.dumps(own))
    (span,) = export(otlp_receiver, process.batch())
    assert attributes(span.attributes) == own | {"monitor.trace_segment": "duration"}


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [("error", Status.STATUS_CODE_ERROR, "ValueError"), ("cancelled", Status.STATUS_CODE_UNSET, "")],
)
def test_failed_span_reports_its_status_and_exception(otlp_receiver, fake_process, status, code, message):
    (span,) = export(otlp_receiver, fake_process().span(status=status, error="ValueError").batch())
    assert (span.status.code, span.status.message) == (code, message)
    assert attributes(span.attributes)["error.type"] == "ValueError"
    assert attributes(span.attributes)["monitor.status"] == status


def test_open_span_waits_for_its_completion(otlp_receiver, fake_process):
    process = fake_process()
    opened = process.span("slow", duration_ns=OPEN, status="open").batch()
    completed = process.span("slow", duration_ns=9).batch()
    (span,) = export(otlp_receiver, opened, completed)
    assert span.end_time_unix_nano - span.start_time_unix_nano == 9


def test_processes_are_resources_of_one_request(otlp_receiver, fake_process):
    first = fake_process("a", role="rollout", rank=0, labels={"zone": "x", "host.name": "mine"})
    second = fake_process("b")
    export(otlp_receiver, first.span().batch(), second.span().batch(), first.span(span_id=2).batch())
    (request,) = otlp_receiver.requests
    resources = [attributes(resource.resource.attributes) for resource in request.resource_spans]
    assert resources[0] == {
        "zone": "x",
        "service.name": "rl_insight_monitor",
        "service.instance.id": "a",
        "host.name": "node0",
        "process.pid": 7,
        "rl.run.id": "r1",
        "run_id": "r1",
        "project": "demo",
        "experiment_name": "grpo",
        "rank": 0,
        "role": "rollout",
    }
    assert (resources[1]["service.name"], resources[1]["role"]) == ("rl_insight_monitor", "")
    assert "rank" not in resources[1]
    assert [len(resource.scope_spans[0].spans) for resource in request.resource_spans] == [2, 1]


def test_the_namespace_of_the_collector_is_the_service(otlp_receiver, fake_process):
    with closing(Collector([OtlpTraceSink(otlp_receiver.url)], namespace="team")) as collector:
        collector.ingest(fake_process().span().payload())
    resource = otlp_receiver.requests[0].resource_spans[0].resource
    assert attributes(resource.attributes)["service.name"] == "team"


def test_event_goes_with_its_span_or_becomes_a_child_without_length(otlp_receiver, fake_process):
    process = fake_process().span("work", span_id=1, trace=(0, 5))
    process.event("with", span_id=1, trace=(0, 5), attributes='{"a": 1}', step=2)
    process.event("late", span_id=99, trace=(0, 5))
    process.event("alone", lane="gpu0")
    work, late, alone = export(otlp_receiver, process.batch())
    assert [(event.name, attributes(event.attributes)) for event in work.events] == [("with", {"a": 1, "step": 2})]
    assert (late.name, late.parent_span_id.hex()) == ("late", f"{99:016x}")
    assert late.trace_id == work.trace_id
    assert attributes(late.attributes)["monitor.trace_segment"] == "event"
    assert alone.parent_span_id == b""
    assert len(alone.trace_id) == 16
    assert any(alone.trace_id)
    assert len({work.span_id, late.span_id, alone.span_id}) == 3


def test_request_is_sent_as_soon_as_enough_spans_are_gathered(otlp_receiver, fake_process):
    sink = OtlpTraceSink(otlp_receiver.url, max_spans=3)
    process = fake_process()
    for number in range(7):
        sink.write(process.span(span_id=number + 1).batch())
    assert [len(request.resource_spans[0].scope_spans[0].spans) for request in otlp_receiver.requests] == [3, 3]
    assert sink.get_status()["pending_spans"] == 1
    sink.flush()
    assert sink.get_status()["sent_spans"] == 7
    sink.close()


def test_collector_flushes_sinks_after_a_while_and_at_close(otlp_receiver, fake_process, wait_until):
    collector = Collector([OtlpTraceSink(otlp_receiver.url, flush_interval_s=0.05)])
    process = fake_process()
    collector.ingest(process.span(span_id=1).payload())
    wait_until(lambda: len(otlp_receiver.spans) == 1)
    collector.ingest(process.span(span_id=2).payload())
    collector.close()
    assert len(otlp_receiver.spans) == 2


@pytest.mark.parametrize(
    ("suffix", "path"),
    [("", "/v1/traces"), ("/", "/v1/traces"), ("/otlp/push?tenant=a", "/otlp/push?tenant=a")],
)
def test_endpoint_is_used_as_it_is_unless_it_has_no_path(otlp_receiver, fake_process, suffix, path):
    sink = OtlpTraceSink(otlp_receiver.url + suffix, headers={"Authorization": "Bearer t"})
    sink.write(fake_process().span(attributes=json.dumps({"long": "x" * 2000})).batch())
    sink.flush()
    sink.close()
    assert otlp_receiver.paths == [path]
    assert otlp_receiver.headers[0]["Authorization"] == "Bearer t"
    assert otlp_receiver.headers[0]["Content-Encoding"] == "gzip"


@pytest.mark.parametrize("endpoint", ["", "localhost:4318", "ftp://host/x", "http://"])
def test_endpoint_that_is_not_a_url_is_refused(endpoint):
    with pytest.raises(ConfigError, match="http or https URL"):
        OtlpTraceSink(endpoint)


def test_transient_failures_are_retried(otlp_receiver, fake_process):
    otlp_receiver.answers = [(503, {}, b""), (429, {"Retry-After": "0"}, b"")]
    (span,) = export(otlp_receiver, fake_process().span().batch())
    assert span.name == "work"
    assert len(otlp_receiver.paths) == 3


def test_refusal_is_not_retried_and_the_spans_are_counted_as_lost(otlp_receiver, fake_process):
    otlp_receiver.answers = [(400, {}, b"bad span")]
    sink = OtlpTraceSink(otlp_receiver.url)
    process = fake_process()
    sink.write(process.span().batch())
    with pytest.raises(TransportError, match="400 bad span"):
        sink.flush()
    sink.write(process.span().batch())
    sink.flush()
    status = sink.get_status()
    assert (status["lost_spans"], status["sent_spans"], status["retries"]) == (1, 1, 0)
    sink.close()


def test_unreachable_receiver_is_abandoned_within_the_bound(fake_process):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        sink = OtlpTraceSink(f"http://127.0.0.1:{taken.getsockname()[1]}", retry_for_s=0.3)
        sink.write(fake_process().span().batch())
        with pytest.raises(TransportError, match="does not answer"):
            sink.flush()
    status = sink.get_status()
    assert (status["lost_spans"], status["retries"], status["pending_spans"]) == (1, 1, 0)


def test_spans_the_receiver_rejected_are_counted(otlp_receiver, fake_process):
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 1
    otlp_receiver.answers = [(200, {}, answer.SerializeToString()), (200, {}, b"not protobuf \xff")]
    sink = OtlpTraceSink(otlp_receiver.url)
    process = fake_process()
    for _ in range(2):
        sink.write(process.span().batch())
        sink.flush()
    assert sink.get_status()["rejected_spans"] == 1
    sink.close()
