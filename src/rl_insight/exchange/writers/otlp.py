"""OTLP JSON: one request a line, as the OpenTelemetry collector's file exporter writes and reads them.

Names follow the open proposal for reinforcement learning (`rl.run.id`, ...) beside OpenTelemetry's own.
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from rl_insight._version import __version__
from rl_insight.exchange.read_back import read_back
from rl_insight.exchange.readers.base import number_of
from rl_insight.exchange.rows import Selection
from rl_insight.exchange.writers.output import output_file
from rl_insight.schema import Batch, Process, records
from rl_insight.schema.records import EventRecord, HistogramRecord, LogRecord, SampleRecord, SpanRecord
from rl_insight.store.queries import Cursor

_encode = msgspec.json.Encoder().encode
_INTERNAL, _ERROR = 1, 2
_CUMULATIVE = 2
_SCALE = 4
"""Sixteen buckets an octave, as our histograms have."""
_ORIGIN = 32768
_STATES = frozenset({"state_interval", "state_nested"})
_MAX_DEPTH = 8
_SCOPE = {"name": "rl_insight", "version": __version__}


def write_otlp(cursor: Cursor, path: Path, selection: Selection) -> int:
    """Write requests of spans, metrics and logs; returns how many records they hold. Open spans have no end yet."""
    written = 0
    with output_file(path) as stream:
        for batch in read_back(cursor, selection):
            for request, count in _requests(batch):
                stream.write(_encode(request) + b"\n")
                written += count
    return written


def _requests(batch: Batch) -> list[tuple[dict[str, Any], int]]:
    spans: list[dict[str, Any]] = []
    logs: list[dict[str, Any]] = []
    metrics: dict[tuple[str, str], dict[str, Any]] = {}
    points = 0
    for number, record in enumerate(records(batch)):
        if isinstance(record, SpanRecord):
            spans.append(_span(record))
        elif isinstance(record, EventRecord):
            spans.append(_instant(record, f"{batch.sequence}/{number}"))
        elif isinstance(record, LogRecord):
            logs.append(_log(record))
        elif isinstance(record, (SampleRecord, HistogramRecord)):
            points += 1
            _add_point(metrics, record)
    resource = {"attributes": _attributes(_resource(batch.process))}
    found: list[tuple[dict[str, Any], int]] = []
    if spans:
        scoped: dict[str, Any] = {"scope": _SCOPE, "spans": spans}
        found.append(({"resourceSpans": [{"resource": resource, "scopeSpans": [scoped]}]}, len(spans)))
    if logs:
        scoped = {"scope": _SCOPE, "logRecords": logs}
        found.append(({"resourceLogs": [{"resource": resource, "scopeLogs": [scoped]}]}, len(logs)))
    if metrics:
        scoped = {"scope": _SCOPE, "metrics": list(metrics.values())}
        found.append(({"resourceMetrics": [{"resource": resource, "scopeMetrics": [scoped]}]}, points))
    return found


def _resource(process: Process) -> dict[str, Any]:
    found: dict[str, Any] = {
        **process.labels,
        "service.name": process.role or "rl-insight",
        "service.instance.id": process.process_id,
        "host.name": process.host,
        "process.pid": process.pid,
        "rl.run.id": process.run_id,
        "run_id": process.run_id,
        "project": process.project,
        "experiment_name": process.experiment_name,
        "role": process.role,
    }
    if process.rank is not None:
        found["rank"] = process.rank
    return {key: value for key, value in found.items() if value not in {"", None}}


def _span(record: SpanRecord) -> dict[str, Any]:
    own: dict[str, Any] = {"monitor.trace_segment": record.segment, "process_id": record.process_id}
    if record.segment in _STATES:
        own |= {"state_name": record.name, "state_lane_id": record.lane or record.process_id}
    elif record.lane is not None:
        own["lane"] = record.lane
    if record.status != "ok":
        own["monitor.status"] = record.status
    if record.error is not None:
        own["error.type"] = record.error
    found: dict[str, Any] = {
        "traceId": record.trace_id,
        "spanId": record.span_id,
        "name": record.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(record.start_ns),
        "attributes": _attributes({**record.attributes, **own, **_place(record)}),
    }
    if record.parent_id is not None:
        found["parentSpanId"] = record.parent_id
    if record.duration_ns is not None:
        found["endTimeUnixNano"] = str(record.start_ns + record.duration_ns)
    if record.status == "error":
        found["status"] = {"code": _ERROR, "message": record.error or ""}
    return found


def _instant(record: EventRecord, identity: str) -> dict[str, Any]:
    """Return an instant as a span without length, under the span it happened in."""
    own: dict[str, Any] = {"monitor.trace_segment": "event", "process_id": record.process_id}
    if record.lane is not None:
        own["lane"] = record.lane
    span_id = f"{number_of(record.process_id, identity):016x}"
    found: dict[str, Any] = {
        "traceId": record.trace_id or f"{span_id}{span_id}",
        "spanId": span_id,
        "name": record.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(record.time_ns),
        "endTimeUnixNano": str(record.time_ns),
        "attributes": _attributes({**record.attributes, **own, **_place(record)}),
    }
    if record.trace_id is not None and record.span_id is not None:
        found["parentSpanId"] = record.span_id
    return found


def _log(record: LogRecord) -> dict[str, Any]:
    own: dict[str, Any] = _place(record)
    if record.lane is not None:
        own["lane"] = record.lane
    if record.logger is not None:
        own["logger"] = record.logger
    found: dict[str, Any] = {
        "timeUnixNano": str(record.time_ns),
        "severityNumber": _severity(record.level),
        "body": {"stringValue": record.message},
        "attributes": _attributes({**record.attributes, **own}),
    }
    if record.trace_id is not None:
        found["traceId"] = record.trace_id
    if record.span_id is not None:
        found["spanId"] = record.span_id
    return found


def _severity(level: int) -> int:
    """Return OpenTelemetry's number for a level of `logging`.

    >>> _severity(20), _severity(40)
    (9, 17)
    """
    return min(max(level // 10, 0), 5) * 4 + 1


def _add_point(metrics: dict[tuple[str, str], dict[str, Any]], record: SampleRecord | HistogramRecord) -> None:
    kind = "histogram" if isinstance(record, HistogramRecord) else record.kind
    metric = metrics.get((record.metric, kind))
    if metric is None:
        metric = metrics[record.metric, kind] = {"name": record.metric, "description": record.documentation}
        if kind == "histogram":
            metric["exponentialHistogram"] = {"aggregationTemporality": _CUMULATIVE, "dataPoints": []}
        elif kind == "counter":
            metric["sum"] = {"aggregationTemporality": _CUMULATIVE, "isMonotonic": True, "dataPoints": []}
        else:
            metric["gauge"] = {"dataPoints": []}
    point: dict[str, Any] = {"attributes": _attributes(dict(record.labels)), "timeUnixNano": str(record.time_ns)}
    if isinstance(record, HistogramRecord):
        metric["exponentialHistogram"]["dataPoints"].append(point | _distribution(record))
    else:
        point["asDouble"] = _number(record.value)
        metric["sum" if kind == "counter" else "gauge"]["dataPoints"].append(point)


def _distribution(record: HistogramRecord) -> dict[str, Any]:
    positive = {code - _ORIGIN: count for code, count in record.buckets.items() if code > 0}
    negative = {-code - _ORIGIN: count for code, count in record.buckets.items() if code < 0}
    return {
        "count": str(record.count),
        "sum": _number(record.sum),
        "min": _number(record.min),
        "max": _number(record.max),
        "scale": _SCALE,
        "zeroCount": str(record.buckets.get(0, 0)),
        "positive": _dense(positive),
        "negative": _dense(negative),
    }


def _dense(buckets: dict[int, int]) -> dict[str, Any]:
    if not buckets:
        return {"offset": 0, "bucketCounts": []}
    first, last = min(buckets), max(buckets)
    return {"offset": first, "bucketCounts": [str(buckets.get(index, 0)) for index in range(first, last + 1)]}


def _number(value: float | str) -> float | str:
    if isinstance(value, str) or isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124  # NaN differs from itself


def _place(record: SpanRecord | EventRecord | LogRecord) -> dict[str, Any]:
    place: dict[str, Any] = {}
    if record.step is not None:
        place["step"] = record.step
    if record.session_id is not None:
        place["session_id"] = record.session_id
    return place


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _any_value(value)} for key, value in values.items()]


def _any_value(value: Any, depth: int = 0) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and abs(value) < 2**63:
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": _number(value)}
    if value is None:
        return {}
    if depth >= _MAX_DEPTH or not isinstance(value, list | dict):
        return {"stringValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_any_value(item, depth + 1) for item in value]}}
    pairs = [{"key": key, "value": _any_value(item, depth + 1)} for key, item in value.items()]
    return {"kvlistValue": {"values": pairs}}
