"""A batch with impossible values: bad rows are dropped and counted, and every view still works."""

from __future__ import annotations

import time

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rl_insight.schema import BatchBuilder, Loss, Process, encode, frame
from rl_insight.server.app import openapi_document
from rl_insight.transport.ingest_client import CONTENT_TYPE

HUGE = 2**63 - 1
DEEP = '{"a":' * 5_000 + "1" + "}" * 5_000


def bad_batch(case):
    builder = BatchBuilder()
    now = time.time_ns()
    fields = {"span_id": 7, "trace": (1, 2), "name": "bad", "start_ns": now, "duration_ns": 1}
    losses = []
    process = {}
    if case == "start":
        builder.add_span(**fields | {"start_ns": HUGE})
    elif case == "duration":
        builder.add_span(**fields | {"duration_ns": HUGE})
    elif case == "sample":
        builder.add_sample(builder.add_series("m", "gauge", "", "{}"), time_ns=HUGE, value=1.0)
    elif case == "losses":
        losses = [Loss("spans", "a", HUGE), Loss("spans", "b", HUGE)]
    elif case == "depth":
        builder.add_span(**fields | {"attributes": DEEP})
    else:
        process["heartbeat_s"] = 1e308
    builder.add_span(**fields | {"span_id": 8, "name": "good"})
    who = Process(process_id="bad", run_id="r1", host="h", pid=1, **process)
    return builder.build(who, sequence=1, sent_ns=now, losses=losses)


def assert_every_view_answers(client):
    paths = [path for path, methods in openapi_document()["paths"].items() if "get" in methods and "{" not in path]
    asked = [path for path in paths if path.startswith("/api/v1/") and not path.endswith("/live")]
    answers = {path: client.get(path, params={"run": "r1", "span_id": "7", "name": "m"}) for path in asked}
    assert len(answers) > 15
    assert {path: answer.text for path, answer in answers.items() if answer.status_code >= 500} == {}


@pytest.mark.parametrize("case", ["start", "duration", "sample", "losses", "depth", "heartbeat"])
def test_native_batch_is_kept_but_for_what_is_impossible(client, services, make_batch, query, case):
    body = frame(encode(make_batch(1, spans=100))) + frame(encode(bad_batch(case)))
    answer = client.post("/api/v1/ingest", content=body, headers={"Content-Type": CONTENT_TYPE})
    assert answer.json() == {"accepted": 2, "duplicates": 0}
    assert query(services, "r1", "SELECT count(*) FROM spans WHERE name = 'good'") == [(1,)]
    if case in {"start", "duration", "sample"}:
        kind = "samples" if case == "sample" else "spans"
        assert query(services, "r1", "SELECT kind, reason, count FROM losses") == [(kind, "range", 1)]
    assert_every_view_answers(client)
    services.close_lost_sessions()


def test_otlp_spans_pass_the_same_check(client, services, query):
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="rl.run.id").value.string_value = "r1"
    now = time.time_ns()
    for number, start in enumerate((now, 2**63 + 5, HUGE - 10), start=1):
        span = resource.scope_spans.add().spans.add(name="work", start_time_unix_nano=start)
        span.end_time_unix_nano = start + 5
        span.trace_id, span.span_id = number.to_bytes(16, "big"), number.to_bytes(8, "big")
    headers = {"Content-Type": "application/x-protobuf"}
    answer = client.post("/v1/traces", content=request.SerializeToString(), headers=headers)
    assert answer.status_code == 200
    assert query(services, "r1", "SELECT count(*), max(start_ns) FROM spans") == [(1, now)]
    assert_every_view_answers(client)
