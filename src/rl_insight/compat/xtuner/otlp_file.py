"""XTuner's OpenTelemetry file: the spans of each batch as one line of OTLP JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rl_insight.compat._recording import BatchFiles
from rl_insight.otlp.encode.items import EventItem, SpanItem
from rl_insight.otlp.encode.json import attributes, span_object
from rl_insight.schema import Batch
from rl_insight.schema.records import EventRecord, SpanRecord, records

if TYPE_CHECKING:
    from rl_insight.recorder.flusher import Flusher

_MAX_BYTES = 64 * 1000 * 1000
_MAX_WAITING = 10_000


class OtlpFile(BatchFiles):
    """Appends to `traces.jsonl`; at 64 MB the file is renamed with a number, and a new one starts."""

    def __init__(self, flusher: Flusher, path: Path, *, service_name: str, run_id: str) -> None:
        self.path = path
        self._resource = attributes({"service.name": service_name, "run.id": run_id})
        self._rotated = 0
        self._events: dict[str, list[EventRecord]] = {}
        """Events of open spans."""
        self._event_count = 0
        super().__init__(flusher)

    def take(self, batch: Batch) -> bool:
        """Turn the finished spans of a batch into a line."""
        spans = []
        for record in records(batch):
            if isinstance(record, SpanRecord) and record.duration_ns is not None:
                spans.append(record)
            elif isinstance(record, EventRecord) and record.span_id:
                self._keep_event(record.span_id, record)
        if not spans:
            return False
        items = [_item(span, self._events.pop(span.span_id, [])) for span in spans]
        self._event_count -= sum(len(item.events) for item in items)
        encoded = [{"status": {}, **span_object(item)} for item in items]
        scope = {"scope": {"name": "xtuner"}, "spans": encoded}
        line = {"resourceSpans": [{"resource": {"attributes": self._resource}, "scopeSpans": [scope]}]}
        self._rotate()
        self.lines.setdefault(self.path, []).append(msgspec.json.encode(line))
        return True

    def _keep_event(self, span_id: str, event: EventRecord) -> None:
        if self._event_count >= _MAX_WAITING:  # a span that never ends must not exhaust memory
            self._flusher.recorder.losses.count("trace_events", "buffer_full")
            return
        self._event_count += 1
        self._events.setdefault(span_id, []).append(event)

    def _rotate(self) -> None:
        if self.path.exists() and self.path.stat().st_size > _MAX_BYTES:
            self._rotated += 1
            self.path.rename(self.path.with_name(f"{self.path.stem}-{self._rotated}{self.path.suffix}"))


def _item(span: SpanRecord, events: list[EventRecord]) -> SpanItem:
    values = dict(span.attributes)
    if span.step is not None:
        values.setdefault("xtuner.train_step", span.step)
    return SpanItem(
        (int(span.trace_id[:16], 16), int(span.trace_id[16:], 16)),
        int(span.span_id, 16),
        int(span.parent_id or "0", 16),
        span.name,
        span.start_ns,
        span.start_ns + (span.duration_ns or 0),
        _flat(values),
        [EventItem(event.time_ns, event.name, _flat(event.attributes)) for event in events],
        (span.error or "") if span.status == "error" else None,
    )


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Return values as XTuner writes them: objects and nulls as JSON strings."""
    return {key: value if _is_plain(value) else msgspec.json.encode(value).decode() for key, value in values.items()}


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, (str, bool, int, float))
