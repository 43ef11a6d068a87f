"""Encodes OTLP as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from rl_insight._version import __version__
from rl_insight.metrics import Distribution, Family, Point
from rl_insight.otlp.encode.items import (
    EXPONENTIAL_SCALE,
    SCOPE,
    EventItem,
    ExponentialBuckets,
    LogItem,
    SpanItem,
    exponential_buckets,
)
from rl_insight.otlp.mapping import MAX_DEPTH, is_int64, resource_attributes
from rl_insight.schema import Process
from rl_insight.schema.json_values import json_number

_INTERNAL, _ERROR, _CUMULATIVE = 1, 2, 2
_DATA = {"gauge": "gauge", "sum": "sum", "exponential_histogram": "exponentialHistogram"}
_SIGNALS = {
    "spans": ("resourceSpans", "scopeSpans", "spans"),
    "metrics": ("resourceMetrics", "scopeMetrics", "metrics"),
    "logs": ("resourceLogs", "scopeLogs", "logRecords"),
}

_Object = dict[str, Any]


def request(signal: str, process: Process, scopes: Mapping[str, list[_Object]], service: str) -> _Object:
    """Return a request with the items of one process for a signal (`spans`, `metrics` or `logs`), by scope."""
    resources, scoped, items = _SIGNALS[signal]
    found = [{"scope": _scope(name), items: content} for name, content in scopes.items()]
    resource = {"attributes": attributes(resource_attributes(process, service))}
    return {resources: [{"resource": resource, scoped: found}]}


def _scope(name: str) -> _Object:
    return {"name": name, "version": __version__} if name == SCOPE else {"name": name}


def span_object(span: SpanItem) -> _Object:
    """Return a span."""
    found: _Object = {
        "traceId": _trace_id(span.trace),
        "spanId": f"{span.span_id:016x}",
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": attributes(span.attributes),
    }
    if span.parent_id:
        found["parentSpanId"] = f"{span.parent_id:016x}"
    if span.events:
        found["events"] = [_event(event) for event in span.events]
    if span.error is not None:
        found["status"] = {"code": _ERROR, "message": span.error}
    return found


def _event(event: EventItem) -> _Object:
    return {"timeUnixNano": str(event.time_ns), "name": event.name, "attributes": attributes(event.attributes)}


def log_object(log: LogItem) -> _Object:
    """Return a log record."""
    found: _Object = {
        "timeUnixNano": str(log.time_ns),
        "observedTimeUnixNano": str(log.time_ns),
        "severityNumber": log.severity,
        "severityText": log.severity_text,
        "body": {"stringValue": log.body},
        "attributes": attributes(log.attributes),
    }
    if log.trace != (0, 0):
        found["traceId"] = _trace_id(log.trace)
    if log.span_id:
        found["spanId"] = f"{log.span_id:016x}"
    return found


def metric_object(family: Family, start_ns: int) -> _Object:
    """Return a metric recorded by a process, without bounds; `start_ns` is when its totals started."""
    data: _Object = {"dataPoints": [_point(family, point, start_ns) for point in family.points]}
    if family.kind.is_cumulative:
        data["aggregationTemporality"] = _CUMULATIVE
    if family.kind.otlp_type == "sum":
        data["isMonotonic"] = True
    return {"name": family.name, "description": family.documentation, _DATA[family.kind.otlp_type]: data}


def _point(family: Family, point: Point, start_ns: int) -> _Object:
    found: _Object = {"attributes": attributes(dict(point.labels)), "timeUnixNano": str(max(point.time_ns, 0))}
    if start_ns > 0 and family.kind.is_cumulative:
        found["startTimeUnixNano"] = str(start_ns)
    if not isinstance(point.value, Distribution):
        return found | {"asDouble": json_number(point.value)}
    zero, positive, negative = exponential_buckets(point.value.buckets)
    found |= {
        "count": str(point.value.total_count),
        "sum": json_number(point.value.sum),
        "scale": EXPONENTIAL_SCALE,
        "zeroCount": str(zero),
    }
    if positive.counts:
        found["positive"] = _side(positive)
    if negative.counts:
        found["negative"] = _side(negative)
    if isfinite(point.value.minimum) and isfinite(point.value.maximum):
        found |= {"min": point.value.minimum, "max": point.value.maximum}
    return found


def _side(buckets: ExponentialBuckets) -> _Object:
    return {"offset": buckets.offset, "bucketCounts": list(map(str, buckets.counts))}


def _trace_id(trace: tuple[int, int]) -> str:
    return f"{trace[0]:016x}{trace[1]:016x}"


def attributes(values: Mapping[str, Any]) -> list[_Object]:
    """Return values as `KeyValue` objects."""
    return [{"key": key, "value": any_value(value)} for key, value in values.items()]


def any_value(value: Any, depth: int = 0) -> _Object:
    """Return an `AnyValue`; types that OTLP lacks become strings."""
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if is_int64(value):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": json_number(value)}
    if value is None:
        return {}
    if depth >= MAX_DEPTH or not isinstance(value, list | dict):
        return {"stringValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(item, depth + 1) for item in value]}}
    pairs = [{"key": key, "value": any_value(item, depth + 1)} for key, item in value.items()]
    return {"kvlistValue": {"values": pairs}}
