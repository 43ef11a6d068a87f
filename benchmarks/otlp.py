"""The cost of a span in OTLP: our encoder, the generated classes, JSON, and decoding."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from benchmarks.harness import Figure, Options
from rl_insight.metrics.totals import TotalsTable
from rl_insight.otlp.decode import rows_of
from rl_insight.otlp.decode.requests import OtlpSignal, read_request
from rl_insight.otlp.encode.items import SCOPE, SpanItem, span_items
from rl_insight.otlp.encode.json import span_object
from rl_insight.otlp.encode.protobuf import encode_span, request_part
from rl_insight.otlp.wire import BYTES, sized, tag
from rl_insight.schema import Batch, BatchBuilder, Process

NAME = "otlp"

_SPANS = 2_000
_TRACE_ID, _SPAN_ID = struct.Struct(">QQ").pack, struct.Struct(">Q").pack


def run(options: Options) -> Iterator[Figure]:
    """Measure encoding and decoding, in CPU time."""
    rounds = 3 if options.quick else 15
    batch = _batch()
    ours = _us_per_span(lambda: [encode_span(span) for span in span_items(batch)], rounds)
    theirs = _us_per_span(lambda: _with_generated_classes(batch), rounds)
    yield Figure("a span to protobuf", ours, "us")
    yield Figure("the same with opentelemetry-proto", theirs, "us")
    yield Figure("opentelemetry-proto / ours", theirs / ours, "x", budget=1.5, at_least=True)
    as_json = _us_per_span(lambda: msgspec.json.encode([span_object(span) for span in span_items(batch)]), rounds)
    yield Figure("a span to JSON", as_json, "us")
    part = request_part(batch.process, {SCOPE: [encode_span(span) for span in span_items(batch)]}, "benchmarks")
    body = tag(1, BYTES) + sized(part)
    yield Figure("a span from protobuf to a row", _us_per_span(lambda: _decode(body, batch.process), rounds), "us")


def _batch() -> Batch:
    builder = BatchBuilder()
    for number in range(_SPANS):
        builder.add_span(
            span_id=number + 1,
            trace=(1, number),
            parent_id=number,
            name="generate",
            start_ns=time.time_ns(),
            duration_ns=1000 + number,
            lane=f"lane-{number % 8}",
            step=number // 100,
            session_id=f"s{number // 4}",
            attributes=f'{{"tokens":{number},"model":"policy","turn":3,"uid":"{number:032x}"}}',
        )
    return builder.build(Process(process_id="p-1", run_id="r", host="h", pid=1), sequence=1, sent_ns=1)


def _us_per_span(work: Callable[[], object], rounds: int) -> float:
    """Return the best of several rounds, so that other work on the machine does not affect the figure."""
    best = float("inf")
    for _ in range(rounds):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return 1e6 * best / _SPANS


def _with_generated_classes(batch: Batch) -> bytes:
    scope = ScopeSpans()
    scope.spans.extend([_generated(span) for span in span_items(batch)])
    return scope.SerializeToString()


def _generated(span: SpanItem) -> Span:
    return Span(
        trace_id=_TRACE_ID(*span.trace),
        span_id=_SPAN_ID(span.span_id),
        parent_span_id=_SPAN_ID(span.parent_id) if span.parent_id else b"",
        name=span.name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=[KeyValue(key=key, value=_value(value)) for key, value in span.attributes.items()],
    )


def _value(value: Any) -> AnyValue:
    return AnyValue(string_value=value) if isinstance(value, str) else AnyValue(int_value=value)


def _decode(body: bytes, process: Process) -> None:
    request: ExportTraceServiceRequest = read_request(OtlpSignal.TRACES, body, is_json=False)
    rows_of(OtlpSignal.TRACES, request.resource_spans[0], process, TotalsTable()).build(1)
