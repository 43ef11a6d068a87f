"""XTuner's OpenTelemetry file: the spans of each batch as one line of OTLP in JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rl_insight.compat._recording import BatchFiles
from rl_insight.schema import Batch
from rl_insight.schema.records import EventRecord, SpanRecord, records

if TYPE_CHECKING:
    from rl_insight.recorder.flusher import Flusher

_MAX_BYTES = 64 * 1000 * 1000
_MAX_WAITING = 10_000
_INTERNAL, _ERROR = 1, 2


class OtlpFile(BatchFiles):
    """Appends to `traces.jsonl`; at 64 MB the file gets a number and a new one begins."""

    def __init__(self, flusher: Flusher, path: Path, *, service_name: str, run_id: str) -> None:
        self.path = path
        self._resource = _pairs({"service.name": service_name, "run.id": run_id})
        self._rotated = 0
        self._events: dict[str, list[EventRecord]] = {}
        """Of spans that have not ended."""
        super().__init__(flusher)

    def take(self, batch: Batch) -> bool:
        """Turn the spans of a batch that have ended into a line."""
        spans = []
        for record in records(batch):
            if isinstance(record, SpanRecord) and record.duration_ns is not None:
                spans.append(record)
            elif isinstance(record, EventRecord) and record.span_id and len(self._events) < _MAX_WAITING:
                self._events.setdefault(record.span_id, []).append(record)
        if not spans:
            return False
        encoded = [_span(span, self._events.pop(span.span_id, [])) for span in spans]
        scope = {"scope": {"name": "xtuner"}, "spans": encoded}
        line = {"resourceSpans": [{"resource": {"attributes": self._resource}, "scopeSpans": [scope]}]}
        self._rotate()
        self.lines.setdefault(self.path, []).append(msgspec.json.encode(line))
        return True

    def _rotate(self) -> None:
        if self.path.exists() and self.path.stat().st_size > _MAX_BYTES:
            self._rotated += 1
            self.path.rename(self.path.with_name(f"{self.path.stem}-{self._rotated}{self.path.suffix}"))


def _span(span: SpanRecord, events: list[EventRecord]) -> dict[str, Any]:
    attributes = dict(span.attributes)
    if span.step is not None:
        attributes.setdefault("xtuner.train_step", span.step)
    found: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.start_ns + (span.duration_ns or 0)),
        "attributes": _pairs(attributes),
        "status": {"code": _ERROR, "message": span.error or ""} if span.status == "error" else {},
    }
    if span.parent_id is not None:
        found["parentSpanId"] = span.parent_id
    if events:
        found["events"] = [
            {"name": event.name, "timeUnixNano": str(event.time_ns), "attributes": _pairs(event.attributes)}
            for event in events
        ]
    return found


def _pairs(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(inner) for inner in value]}}
    return {"stringValue": value if isinstance(value, str) else msgspec.json.encode(value).decode()}
