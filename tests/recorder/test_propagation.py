from __future__ import annotations

from types import MappingProxyType

import pytest

import rl_insight as insight
from rl_insight.recorder.context import current_session_id
from rl_insight.recorder.propagation import parse_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADER = f"00-{TRACE}-{SPAN}-01"


def test_attached_span_is_the_parent(insight_capture):
    with insight.attach({"traceparent": HEADER}), insight.trace_span("handle"):
        pass
    with insight.trace_span("later"):
        pass
    span = insight_capture.span("handle")
    assert (span.trace_id, span.parent_id) == (TRACE, SPAN)
    assert insight_capture.span("later").parent_id is None


def test_injected_context_makes_children_elsewhere(insight_capture):
    with insight.trace_span("caller"), insight.step(7):
        carrier = insight.inject()
    with insight.attach(carrier), insight.trace_span("callee"):
        pass
    caller, callee = insight_capture.span("caller"), insight_capture.span("callee")
    assert (callee.parent_id, callee.trace_id, callee.step) == (caller.span_id, caller.trace_id, 7)


def test_carrier_is_filled_and_returned(insight_capture):
    headers = {"content-type": "application/json"}
    with insight.trace_span("caller"):
        assert insight.inject(headers) is headers
    assert headers["content-type"] == "application/json"
    assert parse_traceparent(headers["traceparent"]) is not None


def test_without_context_nothing_is_injected(insight_capture):
    assert insight.inject() == {}


def test_step_of_the_process_travels(insight_capture):
    insight.set_step(3)
    with insight.attach(insight.inject()):
        insight.set_step(9)
        insight.metric_gauge("reward_mean", 1.0)
    assert insight_capture.metric("reward_mean").step == 3


def test_session_travels(insight_capture):
    token = current_session_id.set("task 1/sample=2,π")
    carrier = insight.inject()
    current_session_id.reset(token)
    with insight.attach(carrier):
        insight.trace_event("inside")
    insight.trace_event("outside")
    assert [event.session_id for event in insight_capture.events] == ["task 1/sample=2,π", None]
    assert all(value.isascii() for value in carrier.values())


@pytest.mark.parametrize(("task_id", "arrives_as"), [("math/17,π", "math/17,π"), (17, "17"), ("", "")])
def test_the_task_travels(insight_capture, task_id, arrives_as):
    with insight.task(task_id):
        carrier = insight.inject({"baggage": "rl_insight.task=stale,user=42"})
    with insight.attach(carrier), insight.session(session_id="inside"):
        assert insight.inject()["baggage"].count("rl_insight.task=") == 1
    with insight.session(session_id="outside"):
        assert "rl_insight.task" not in insight.inject().get("baggage", "")
    inside, outside = insight_capture.sessions
    assert (inside["task_id"], "task_id" in outside) == (arrives_as, False)
    assert carrier["baggage"].isascii()
    assert "stale" not in carrier["baggage"]


@pytest.mark.parametrize("name", ["TRACEPARENT", "Traceparent", "traceparent"])
def test_header_names_are_read_in_any_case(insight_capture, name):
    with insight.attach({name: HEADER}), insight.trace_span("handle"):
        pass
    assert insight_capture.span("handle").trace_id == TRACE


def test_headers_of_bytes_are_read(insight_capture):
    with insight.attach({b"traceparent": HEADER.encode()}), insight.trace_span("handle"):
        pass
    assert insight_capture.span("handle").trace_id == TRACE


@pytest.mark.parametrize(
    "header",
    [
        "",
        "garbage",
        HEADER[:-1],
        HEADER + "0",
        f"00-{TRACE}-{SPAN}-01-extra",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
        f"0-{TRACE}-{SPAN}-01",
        "\u0660\u0660-" + HEADER[3:],
        None,
        7,
    ],
)
def test_malformed_traceparent_is_not_a_parent(insight_capture, header):
    with insight.attach({"traceparent": header}), insight.trace_span("handle"):
        pass
    assert insight_capture.span("handle").parent_id is None


@pytest.mark.parametrize("header", [HEADER.upper(), f" {HEADER} ", f"cc-{TRACE}-{SPAN}-01-future", HEADER[:-2] + "00"])
def test_unusual_but_valid_traceparent_is_read(header):
    assert parse_traceparent(header).span_id == int(SPAN, 16)


class BadMapping(dict):
    def items(self):
        raise RuntimeError("no items")


@pytest.mark.parametrize("carrier", [None, 5, "text", [("traceparent", HEADER)], BadMapping()])
def test_carrier_that_is_not_a_mapping_is_survived(insight_capture, carrier):
    with insight.attach(carrier), insight.trace_span("handle"):
        pass
    assert insight_capture.span("handle").parent_id is None


@pytest.mark.parametrize("carrier", [MappingProxyType({}), 5, "text", ()])
def test_carrier_that_takes_nothing_is_survived(insight_capture, caplog, carrier):
    with insight.trace_span("caller"):
        assert insight.inject(carrier) is carrier
    assert insight_capture.losses == {"contexts/bad_carrier": 1}
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("baggage", "step"),
    [
        ("rl_insight.step=7", 7),
        (" rl_insight.step = 7 ;meta=1 , other=2", 7),
        ("rl_insight.step=-1", -1),
        ("rl_insight.step=x", None),
        ("rl_insight.step=1.5", None),
        (f"rl_insight.step={2**56}", None),
        ("rl_insight.step=", None),
        ("rl_insight.step", None),
        (",,,", None),
    ],
)
def test_step_in_baggage(insight_capture, baggage, step):
    with insight.attach({"baggage": baggage}):
        insight.trace_event("e")
    assert insight_capture.events[0].step == step


def test_foreign_tracestate_and_baggage_are_passed_on(insight_capture):
    arriving = {
        "traceparent": HEADER,
        "tracestate": "vendor=abc,other=1",
        "baggage": "user=42;p=1,rl_insight.step=3,k=v",
    }
    with insight.attach(arriving), insight.trace_span("handle"):
        leaving = insight.inject()
    assert leaving["tracestate"] == "vendor=abc,other=1"
    assert leaving["baggage"] == "user=42;p=1,k=v,rl_insight.step=3"
    assert leaving["traceparent"].split("-")[1] == TRACE
    assert leaving["traceparent"].split("-")[2] == insight_capture.span("handle").span_id


def test_baggage_that_the_caller_put_into_the_carrier_stays(insight_capture):
    with insight.step(4):
        carrier = insight.inject({"baggage": "user=42,rl_insight.step=1"})
    assert carrier["baggage"] == "user=42,rl_insight.step=4"


def test_attach_may_stay_until_detach(insight_capture):
    attachment = insight.attach({"traceparent": HEADER, "baggage": "rl_insight.step=2"})
    with insight.trace_span("during"):
        pass
    attachment.detach()
    attachment.detach()
    with insight.trace_span("after"):
        pass
    assert (insight_capture.span("during").parent_id, insight_capture.span("during").step) == (SPAN, 2)
    assert (insight_capture.span("after").parent_id, insight_capture.span("after").step) == (None, None)


def test_opentelemetry_reads_what_we_inject(insight_capture):
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    with insight.trace_span("caller"):
        carrier = insight.inject()
    context = get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
    span = insight_capture.span("caller")
    assert (f"{context.trace_id:032x}", f"{context.span_id:016x}") == (span.trace_id, span.span_id)


class _Unprintable:
    def __str__(self):
        raise ValueError("no text")


@pytest.mark.parametrize("task_id", [_Unprintable(), "\ud800 half a character"], ids=["unprintable", "surrogate"])
def test_a_task_that_has_no_proper_text_does_not_cost_the_parent(insight_capture, task_id):
    with insight.task(task_id):
        carrier = insight.inject({})
    assert "traceparent" in carrier
    assert "rl_insight.task=" in carrier["baggage"]
