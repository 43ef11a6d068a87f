"""OTLP requests and answers, as protobuf and as JSON."""

from __future__ import annotations

import base64
import binascii
import enum
from typing import Any

import msgspec
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from rl_insight.errors import SchemaError

PROTOBUF = "application/x-protobuf"
JSON = "application/json"


class Signal(enum.Enum):
    """The three kinds of OTLP requests."""

    TRACES = "traces"
    METRICS = "metrics"
    LOGS = "logs"


_REQUESTS: dict[Signal, type[Message]] = {
    Signal.TRACES: ExportTraceServiceRequest,
    Signal.METRICS: ExportMetricsServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
}
_RESPONSES: dict[Signal, type[Message]] = {
    Signal.TRACES: ExportTraceServiceResponse,
    Signal.METRICS: ExportMetricsServiceResponse,
    Signal.LOGS: ExportLogsServiceResponse,
}
_REJECTED = {
    Signal.TRACES: "rejected_spans",
    Signal.METRICS: "rejected_data_points",
    Signal.LOGS: "rejected_log_records",
}
_ID_KEYS = frozenset({"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"})
_MAX_DEPTH = 100


def read_request(signal: Signal, body: bytes, *, is_json: bool) -> Any:
    """Return the request message in a body.

    Raises:
        SchemaError: the body is no such request.
    """
    if is_json:
        return _read_json(signal, body)
    request = _REQUESTS[signal]()
    try:
        request.ParseFromString(body)
    except (DecodeError, RecursionError) as error:
        raise SchemaError(f"not an OTLP request for {signal.value}: the bytes are no such protobuf message.") from error
    return request


def _read_json(signal: Signal, body: bytes) -> Any:
    request = _REQUESTS[signal]()
    try:
        decoded = msgspec.json.decode(body, type=dict[str, Any])
        json_format.ParseDict(_with_base64_ids(decoded), request, ignore_unknown_fields=True)
    except SchemaError:
        raise
    except (msgspec.DecodeError, json_format.ParseError, RecursionError, UnicodeError) as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise SchemaError(f"not an OTLP request for {signal.value}: {reason}.") from error
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        # What protobuf's reader of JSON raises for shapes it did not think of.
        raise SchemaError(f"not an OTLP request for {signal.value}: a value has the wrong shape.") from error
    return request


def _with_base64_ids(value: Any, depth: int = 0) -> Any:
    """Return decoded JSON in which trace and span ids, hexadecimal in OTLP, stand as protobuf's JSON wants bytes."""
    if depth > _MAX_DEPTH:
        raise SchemaError("not an OTLP request: it is nested too deeply.")
    if isinstance(value, list):
        return [_with_base64_ids(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _base64_of(item) if key in _ID_KEYS and isinstance(item, str) else _with_base64_ids(item, depth + 1)
        for key, item in value.items()
    }


def _base64_of(text: str) -> str:
    try:
        return base64.b64encode(binascii.unhexlify(text)).decode()
    except ValueError as error:
        raise SchemaError(f"not an OTLP request: {text[:40]!r} is no hexadecimal id.") from error


def answer(signal: Signal, rejected: int, problem: str) -> Message:
    """Return the answer to a request: with a partial success when something was rejected."""
    response = _RESPONSES[signal]()
    if rejected or problem:
        partial = response.partial_success  # type: ignore[attr-defined]  # all three answers have it
        setattr(partial, _REJECTED[signal], rejected)
        partial.error_message = problem
    return response


def encoded_answer(response: Message, *, is_json: bool) -> bytes:
    """Return an answer in the form of its request."""
    if is_json:
        return json_format.MessageToJson(response, indent=None).encode()
    return response.SerializeToString()


def encoded_error(code: int, message: str, *, is_json: bool) -> bytes:
    """Return a `google.rpc.Status`, which tells an OTLP client what went wrong."""
    if is_json:
        return msgspec.json.encode({"code": code, "message": message})
    text = message.encode("utf-8", "replace")
    return b"\x08" + _varint(code) + b"\x12" + _varint(len(text)) + text


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
