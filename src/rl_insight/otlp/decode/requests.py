"""OTLP requests and responses, as protobuf and JSON."""

from __future__ import annotations

import base64
import binascii
import enum
import sys
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

from rl_insight.errors import SchemaError, TooLargeError
from rl_insight.otlp.limits import check_json, check_protobuf
from rl_insight.otlp.wire import BYTES, VARINT, tag, text, varint

PROTOBUF = "application/x-protobuf"
JSON = "application/json"


class OtlpSignal(enum.Enum):
    """The signals of OTLP."""

    TRACES = "traces"
    METRICS = "metrics"
    LOGS = "logs"


_MESSAGES: dict[OtlpSignal, tuple[type[Message], type[Message]]] = {
    OtlpSignal.TRACES: (ExportTraceServiceRequest, ExportTraceServiceResponse),
    OtlpSignal.METRICS: (ExportMetricsServiceRequest, ExportMetricsServiceResponse),
    OtlpSignal.LOGS: (ExportLogsServiceRequest, ExportLogsServiceResponse),
}
"""The request and response of each signal."""
_MAX_RESOURCES = 10_000
"""Each becomes a batch, which takes a few kilobytes even if it is small."""
_ID_KEYS = frozenset({"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"})
_MAX_DEPTH = 100


def read_request(signal: OtlpSignal, body: bytes, *, is_json: bool, max_items: int = sys.maxsize) -> Any:
    """Parse a request body.

    Raises:
        TooLargeError: it has more than `max_items` spans, points, records and attributes, or too many resources.
        SchemaError: the body is not a valid request.
    """
    if is_json:
        check_json(body, max_items)
        request = _read_json(signal, body)
    else:
        request = _MESSAGES[signal][0]()
        check_protobuf(body, request.DESCRIPTOR, max_items)
        try:
            request.ParseFromString(body)
        except (DecodeError, RecursionError) as error:
            raise SchemaError(f"not an OTLP request for {signal.value}: not that protobuf message.") from error
    resources = len(resources_of(request))
    if resources > _MAX_RESOURCES:
        raise TooLargeError(
            f"the request has {resources} resources, but the limit is {_MAX_RESOURCES}. Send smaller requests."
        )
    return request


def resources_of(request: Any) -> Any:
    """Return the `Resource*` messages of a request: its only field."""
    return getattr(request, request.DESCRIPTOR.fields[0].name)


def _read_json(signal: OtlpSignal, body: bytes) -> Any:
    request = _MESSAGES[signal][0]()
    try:
        decoded = msgspec.json.decode(body, type=dict[str, Any])
        _convert_ids(decoded)
        json_format.ParseDict(decoded, request, ignore_unknown_fields=True)
    except SchemaError:
        raise
    except (msgspec.DecodeError, json_format.ParseError, RecursionError, UnicodeError) as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise SchemaError(f"not an OTLP request for {signal.value}: {reason}.") from error
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        # Raised by protobuf's JSON parser for unexpected shapes.
        raise SchemaError(f"not an OTLP request for {signal.value}: a value has the wrong shape.") from error
    return request


def _convert_ids(value: Any, depth: int = 0) -> None:
    """Convert trace and span ids from hexadecimal, as in OTLP, to base64, as in protobuf's JSON."""
    if depth > _MAX_DEPTH:
        raise SchemaError("not an OTLP request: nested too deeply.")
    if isinstance(value, list):
        for item in value:
            _convert_ids(item, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, str):
                if key in _ID_KEYS:
                    value[key] = _base64_of(item)
            else:
                _convert_ids(item, depth + 1)


def _base64_of(text: str) -> str:
    try:
        return base64.b64encode(binascii.unhexlify(text)).decode()
    except ValueError as error:
        raise SchemaError(f"not an OTLP request: {text[:40]!r} is not a hexadecimal id.") from error


def answer(signal: OtlpSignal, rejected: int, problem: str) -> Message:
    """Return the response to a request, with a partial success if items were rejected."""
    response = _MESSAGES[signal][1]()
    if rejected or problem:
        partial = response.partial_success  # type: ignore[attr-defined]  # all three answers have it
        setattr(partial, partial.DESCRIPTOR.fields[0].name, rejected)
        partial.error_message = problem
    return response


def encoded_answer(response: Message, *, is_json: bool) -> bytes:
    """Encode a response in the format of its request."""
    if is_json:
        return json_format.MessageToJson(response, indent=None).encode()
    return response.SerializeToString()


def encoded_error(code: int, message: str, *, is_json: bool) -> bytes:
    """Encode an error as a `google.rpc.Status`."""
    if is_json:
        return msgspec.json.encode({"code": code, "message": message})
    return tag(1, VARINT) + varint(code) + tag(2, BYTES) + text(message)
