"""Our bytes are protobuf's bytes."""

from __future__ import annotations

import pytest
from google.protobuf import wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint

from rl_insight.otlp.encode.protobuf import any_value
from rl_insight.otlp.wire import BYTES, VARINT, fields, sized, tag, text, varint, zigzag


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_integers_are_written_as_protobuf_writes_them(number):
    assert wrappers_pb2.Int64Value.FromString(tag(1, VARINT) + varint(number)).value == number


@given(st.integers(min_value=-(2**31), max_value=2**31 - 1))
def test_signed_integers_are_written_as_protobuf_writes_them(number):
    assert ExponentialHistogramDataPoint.FromString(tag(6, VARINT) + zigzag(number)).scale == number


def from_message(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [from_message(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: from_message(pair.value) for pair in value.kvlist_value.values}
    return getattr(value, kind) if kind else None


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(min_value=-(2**63), max_value=2**63 - 1)
        | st.floats(allow_nan=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=12,
    )
)
def test_values_of_any_shape_are_read_back_by_protobuf(value):
    found = from_message(AnyValue.FromString(any_value(value)))
    assert found == value
    assert type(found) is type(value)


def test_what_otlp_has_no_type_for_becomes_text():
    assert AnyValue.FromString(any_value(2**70)).string_value == str(2**70)
    assert AnyValue.FromString(any_value("lone \ud800")).string_value == "lone \\ud800"


def test_endless_nesting_ends_as_text():
    nested = []
    for _ in range(200):
        nested = [nested]
    assert AnyValue.FromString(any_value(nested)).HasField("array_value")


def test_fields_are_read_back():
    message = ExponentialHistogramDataPoint(count=3, scale=4, zero_count=0, flags=300, min=1.0).SerializeToString()
    found = dict(fields(message))
    assert (found[4], found[6], found[10]) == ((3).to_bytes(8, "little"), 8, 300)


@pytest.mark.parametrize(
    "message",
    [b"\xff", b"\x08", b"\x0a\x05abc", b"\x09\x00", b"\x0d\x00", b"\x0b", b"\x08" + b"\xff" * 11],
)
def test_bytes_that_are_not_a_message_are_refused(message):
    with pytest.raises(ValueError, match="not a protobuf message"):
        list(fields(message))


def test_nested_message_is_its_own_bytes():
    inner = tag(1, BYTES) + text("x")
    assert list(fields(tag(2, BYTES) + sized(inner))) == [(2, inner)]
