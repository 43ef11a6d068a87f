"""Requests that would exceed memory are refused before decoding; all others pass."""

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rl_insight.errors import SchemaError, TooLargeError
from rl_insight.otlp.limits import check_json, check_protobuf
from rl_insight.otlp.wire import BYTES, sized, tag

TRACES, METRICS = ExportTraceServiceRequest.DESCRIPTOR, ExportMetricsServiceRequest.DESCRIPTOR


def trace_request(spans):
    """Return a request; each span is given as its numbers of attributes and events."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for attributes, events in spans:
        span = scope.spans.add(name="generate", trace_id=b"t" * 16, span_id=b"s" * 8)
        for number in range(attributes):
            value = span.attributes.add(key="k").value
            value.array_value.values.add(int_value=number)
        for _ in range(events):
            span.events.add(name="e")
    return request


def repeated_elements(message):
    found = 0
    for _, value in message.ListFields():
        if isinstance(value, Message):
            found += repeated_elements(value)
        elif not isinstance(value, (str, bytes, int, float)):
            found += len(value) + sum(repeated_elements(item) for item in value)
    return found


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=20), st.integers(1, 200))
def test_what_holds_no_more_than_the_limit_passes_and_what_holds_far_more_does_not(spans, limit):
    request = trace_request(spans)
    items, body = repeated_elements(request), request.SerializeToString()
    if items <= limit:
        check_protobuf(body, TRACES, limit)
    elif items > 2 * limit:
        with pytest.raises(TooLargeError, match=f"more than {limit} spans"):
            check_protobuf(body, TRACES, limit)


LOOKS_LARGE = tag(15, BYTES) + sized(b"J" * 5000)
"""A text whose bytes could be tags: what follows it is scanned."""


def wrapped(content, *numbers):
    for number in numbers:
        content = tag(number, BYTES) + sized(content)
    return content


@pytest.mark.parametrize(
    ("body", "descriptor"),
    [
        pytest.param(wrapped(b"\x12\0" * 1000, 2, 1), TRACES, id="empty spans"),
        pytest.param(wrapped(b"\x92\x80\0\0" * 1000, 2, 1), TRACES, id="tags longer than they need be"),
        pytest.param(wrapped(b"\x4a\0" * 1000, 2, 2, 1), TRACES, id="empty attributes"),
        pytest.param(wrapped(b"\x0a\0" * 1000, 5, 2, 9, 2, 2, 1), TRACES, id="empty array values"),
        pytest.param(wrapped(b"\x0a\0" * 1000, 5, 2, 2, 1), METRICS, id="empty points"),
        pytest.param(wrapped(b"\x39" + bytes(8), 1, 9, 2, 2, 1) * 1000, METRICS, id="unpacked bounds"),
        pytest.param(wrapped((b"\x39" + bytes(8)) * 1000, 1, 9, 2, 2, 1), METRICS, id="unpacked bounds of one point"),
    ],
)
def test_each_kind_of_repeated_element_is_counted(body, descriptor):
    check_protobuf(body, descriptor, 10_000)
    with pytest.raises(TooLargeError):
        check_protobuf(body, descriptor, 100)


def test_packed_numbers_are_counted_in_a_body_of_any_length():
    body = wrapped(wrapped(bytes(17 * 1024 * 1024), 2), 8, 1, 10, 2, 2, 1)
    with pytest.raises(TooLargeError):
        check_protobuf(body, METRICS, 1_000_000)
    check_protobuf(body, METRICS, 10_000_000)


def test_unknown_fields_do_not_cost_unbounded_time():
    with pytest.raises(TooLargeError):
        check_protobuf(b"\x78\0" * 10_000_000, TRACES, 1000)


@pytest.mark.parametrize("end", [b"\x12", b"\x12\x05abc", b"\x0b", b"\xff" * 12, b"\x39abc"])
def test_bytes_that_are_not_a_message_are_refused(end):
    with pytest.raises(SchemaError, match="not a protobuf message"):
        check_protobuf(LOOKS_LARGE + end, TRACES, 1000)


def test_nesting_is_bounded():
    value = b""
    for _ in range(200):
        value = wrapped(value, 1, 5)
    with pytest.raises(SchemaError, match="nested too deeply"):
        check_protobuf(LOOKS_LARGE + wrapped(value, 2, 9, 2, 2, 1), TRACES, 1000)


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (b'{"resourceSpans":[' + b"{}," * 1000 + b"{}]}", 400),
        (b"[" * 1000, 400),
        (b'{"x":[' + b"1," * 8000 + b"1]}", 900),
    ],
)
def test_json_is_counted_by_its_brackets_and_commas(body, limit):
    check_json(body, 10 * limit)
    with pytest.raises(TooLargeError, match="max_request_items"):
        check_json(body, limit)
