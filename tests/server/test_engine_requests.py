"""vLLM's `llm_request` spans, created by the OpenTelemetry SDK as in vLLM, become phases of sessions."""

import json
import time

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import rl_insight as insight
from rl_insight.schema import encode, frame
from rl_insight.testing import FakeClock, capture

FRAMES = {"content-type": "application/vnd.rl-insight.frames"}
PROTOBUF = {"content-type": "application/x-protobuf"}
LATENCIES = {
    "gen_ai.latency.time_in_queue": 0.25,
    "gen_ai.latency.time_in_model_prefill": 0.5,
    "gen_ai.usage.completion_tokens": 512,
}


class Engine:
    """Answers requests like vLLM: continues the trace of the headers, and signals when a request has ended."""

    def __init__(self, **attributes):
        self._memory = InMemorySpanExporter()
        provider = TracerProvider(resource=Resource(attributes))
        provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self._tracer = provider.get_tracer("vllm.llm_engine")

    def answer(self, headers, seconds=2.0, name="llm_request", attributes=LATENCIES):
        forwarded = {key: headers[key] for key in ("traceparent", "tracestate") if key in headers}
        context = TraceContextTextMapPropagator().extract(forwarded)
        start = time.time_ns()
        span = self._tracer.start_span(
            name, context=context, start_time=start, kind=SpanKind.SERVER, attributes=attributes
        )
        span.end(start + round(seconds * 1e9))

    def export(self, client):
        request = encode_spans(self._memory.get_finished_spans())
        self._memory.clear()
        assert client.post("/v1/traces", content=request.SerializeToString(), headers=PROTOBUF).status_code == 200


@pytest.fixture
def clock():
    made = FakeClock()
    made.step_wall(time.time() - made.wall_ns() / 1e9)
    return made


def deliver(captured, client):
    captured.flush()
    body = b"".join(frame(encode(batch)) for batch in captured._transport.batches)
    assert client.post("/api/v1/ingest", content=body, headers=FRAMES).is_success
    return captured.process.run_id


def test_a_request_is_a_phase_of_the_session_that_sent_it(services, client, query, clock):
    engine = Engine(**{"service.name": "vllm"})
    with capture(clock=clock) as captured:
        with insight.step(7), insight.session(task_id="gsm8k-17", session_id="s1"):
            engine.answer(insight.inject())
            clock.advance(3.0)
        run = deliver(captured, client)
    engine.export(client)
    phases = query(services, run, "SELECT name, session_id, step, duration_ns, role FROM spans WHERE segment = 'phase'")
    assert phases == [("generate", "s1", 7, 2_000_000_000, "vllm")]
    ((payload,),) = query(services, run, "SELECT attributes FROM spans WHERE segment = 'phase'")
    assert json.loads(payload) == {**LATENCIES, "span.kind": "server"}
    page = client.get("/api/v1/sessions", params={"run": run}).json()
    assert [session["phase_seconds"] for session in page["sessions"]] == [{"generate": 2.0}]


def test_requests_of_sessions_that_share_a_trace_are_told_apart_by_their_parents(services, client, query, clock):
    engine = Engine(**{"service.name": "vllm"})
    with capture(clock=clock) as captured:
        with insight.task("gsm8k-17"):
            for number in range(2):
                with insight.session(session_id=f"s{number}"), insight.phase("turn"):
                    engine.answer(insight.inject(), seconds=1.0 + number)
        with insight.trace_span("warm-up"):
            engine.answer(insight.inject())
        run = deliver(captured, client)
    engine.answer({})
    engine.export(client)
    sql = "SELECT session_id, duration_ns FROM spans WHERE name = 'generate' ORDER BY 1"
    assert query(services, run, sql) == [("s0", 1_000_000_000), ("s1", 2_000_000_000)]
    (other,) = [name for name in services.runs.open_runs() if name != run]
    assert query(services, other, "SELECT name, session_id FROM spans") == [("llm_request", None)] * 2


def test_a_request_of_a_session_that_is_still_open_is_found(services, client, query, clock):
    engine = Engine(**{"service.name": "vllm"})
    with capture(clock=clock) as captured, insight.session(session_id="s1"):
        engine.answer(insight.inject())
        captured.flush()
        clock.advance(1.0)  # a span that stays open longer than a flush is reported as open
        run = deliver(captured, client)
        engine.export(client)
        assert query(services, run, "SELECT session_id FROM spans WHERE name = 'generate'") == [("s1",)]


def test_an_engine_that_names_its_run_is_looked_up_there_alone(services, client, query, clock):
    with capture(clock=clock) as captured:
        with insight.session(session_id="s1"):
            headers = insight.inject()
        run = deliver(captured, client)
    for name in (run, "another"):
        engine = Engine(**{"service.name": "vllm", "run_id": name})
        engine.answer(headers)
        engine.export(client)
    assert query(services, run, "SELECT count(*) FROM spans WHERE name = 'generate'") == [(1,)]
    assert query(services, "another", "SELECT name FROM spans") == [("llm_request",)]


def test_spans_of_other_names_stay_as_they_are(services, client, query, clock):
    engine = Engine(**{"service.name": "vllm", "run_id": "r"})
    with capture(clock=clock), insight.session(session_id="s1"):
        engine.answer(insight.inject(), name="llm_request_batch")
    engine.export(client)
    assert query(services, "r", "SELECT name, segment FROM spans") == [("llm_request_batch", "duration")]


CHAT = {
    "gen_ai.operation.name": "chat",
    "gen_ai.input.messages": '[{"role":"user","parts":[{"type":"text","content":"2 + 2?"}]}]',
    "gen_ai.output.messages": '[{"role":"assistant","parts":[{"type":"text","content":"4"}]}]',
    "gen_ai.usage.output_tokens": 3,
}
TOOL = {
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.tool.name": "calculator",
    "gen_ai.tool.call.arguments": "2+2",
    "gen_ai.tool.call.result": "4",
}


def conversation(client, run, session_id):
    told = client.get("/api/v1/sessions/transcript", params={"run": run, "session_id": session_id}).json()
    return [(one["role"], one.get("tool"), one["text"], one.get("tokens")) for one in told["messages"]]


SAID = [("user", None, "2 + 2?", None), ("assistant", None, "4", 3), ("tool", "calculator", "4", None)]


def test_calls_of_instrumented_clients_are_phases_of_the_session_of_their_trace(services, client, query, clock):
    agent = Engine(**{"service.name": "agent"})
    with capture(clock=clock) as captured:
        with insight.step(7), insight.session(session_id="s1"):
            agent.answer(insight.inject(), name="chat qwen", attributes=CHAT)
            agent.answer(insight.inject(), name="execute_tool calculator", attributes=TOOL)
        run = deliver(captured, client)
    agent.export(client)
    sql = "SELECT name, session_id, step, attributes->>'$.\"span.name\"' FROM spans WHERE segment = 'phase' ORDER BY 1"
    assert query(services, run, sql) == [
        ("generate", "s1", 7, "chat qwen"),
        ("toolcall", "s1", 7, "execute_tool calculator"),
    ]
    assert sorted(conversation(client, run, "s1")) == sorted(SAID)


def test_a_conversation_of_opentelemetry_is_a_session(services, client, query):
    agent = Engine(**{"service.name": "agent"})
    for attributes in (CHAT, TOOL):
        agent.answer({}, name="call", attributes={**attributes, "gen_ai.conversation.id": "talk-1"})
    agent.answer({}, name="call", attributes=CHAT)
    agent.export(client)
    (run,) = services.runs.open_runs()
    page = client.get("/api/v1/sessions", params={"run": run}).json()
    assert [(one["session_id"], one["status"], one["turns"]) for one in page["sessions"]] == [("talk-1", "accepted", 1)]
    assert sorted(conversation(client, run, "talk-1")) == sorted(SAID)
    assert query(services, run, "SELECT count(*) FROM spans WHERE session_id IS NULL") == [(1,)]
