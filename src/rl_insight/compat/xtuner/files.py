"""XTuner's producer trace: one line of JSON for each start, end and event of a task."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rl_insight.compat._recording import BatchFiles
from rl_insight.schema import Batch
from rl_insight.schema.records import EventRecord, SpanRecord, records
from rl_insight.schema.sessions import PHASE_SEGMENT

if TYPE_CHECKING:
    from rl_insight.recorder.flusher import Flusher

_STATUS = {"ok": "completed", "error": "failed", "cancelled": "cancelled"}
_MAX_TRACES = 100_000
_FIELDS = (
    "task_name",
    "uid",
    "session_uid",
    "train_step",
    "model_step",
    "producer_future_step",
    "produce_batch_id",
)


class ProducerTraceFile(BatchFiles):
    """Appends the events of each batch as it comes, so that a live view sees what is open."""

    def __init__(self, flusher: Flusher, path: Path, *, max_events: int, max_events_per_trace: int) -> None:
        self.MAX_LINES = max_events
        self._path = path
        self._max_events_per_trace = max_events_per_trace
        self._written: OrderedDict[str, int] = OrderedDict()
        self._started: set[str] = set()
        super().__init__(flusher)

    def take(self, batch: Batch) -> bool:
        """Turn a batch's phases and events into lines."""
        lines = self.lines.setdefault(self._path, [])
        for record in records(batch):
            if isinstance(record, SpanRecord) and record.segment == PHASE_SEGMENT:
                events = self._of_span(record)
            elif isinstance(record, EventRecord):
                events = [self._line(record, record.name, record.time_ns, record.attributes.get("status"))]
            else:
                continue
            if "trace_id" not in record.attributes:
                continue
            for event in events:
                if batch.process.rank is not None:
                    event["worker_rank"] = batch.process.rank
                if self._may_write(event["trace_id"]):
                    lines.append(msgspec.json.encode(event))
        return True

    def _of_span(self, span: SpanRecord) -> list[dict[str, Any]]:
        found = []
        if span.span_id not in self._started:
            found.append(self._line(span, f"{span.name}.start", span.start_ns, "running"))
        if span.duration_ns is None:
            self._started.add(span.span_id)
            return found
        self._started.discard(span.span_id)
        is_good = span.status == "ok"
        end_ns = span.start_ns + span.duration_ns
        stage = f"{span.name}.{'end' if is_good else 'error'}"
        event = self._line(span, stage, end_ns, _STATUS.get(span.status, span.status))
        event["elapsed_s"] = span.duration_ns / 1e9
        if not is_good:
            event["error_msg"] = span.attributes.get("error_msg") or span.error or span.status
        return [*found, event]

    def _line(self, record: SpanRecord | EventRecord, stage: str, time_ns: int, status: Any) -> dict[str, Any]:
        attributes = record.attributes
        known = {name: attributes[name] for name in _FIELDS if name in attributes}
        line = {"trace_id": attributes.get("trace_id"), "stage": stage, "timestamp_s": time_ns / 1e9, **known}
        return line if status is None else {**line, "status": status}

    def _may_write(self, trace_id: str) -> bool:
        count = self._written.pop(trace_id, 0) + 1
        self._written[trace_id] = count
        if len(self._written) > _MAX_TRACES:
            self._written.popitem(last=False)
        if count <= self._max_events_per_trace:
            return True
        self._flusher.recorder.losses.count("trace_events", "max_events_per_trace")
        return False
