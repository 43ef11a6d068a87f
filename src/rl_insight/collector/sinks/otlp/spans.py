"""Spans and instants of a batch as OTLP's bytes."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

from rl_insight.collector.sinks.otlp.values import ITEM, attributes, place
from rl_insight.collector.sinks.protobuf import BYTES, FIXED64, VARINT, fixed64, sized, tag, text, varint
from rl_insight.schema import NO_STEP, Batch
from rl_insight.schema.records import _object, _rows

# trace.v1.Span
_NAME = tag(5, BYTES)
_KIND_INTERNAL = tag(6, VARINT) + varint(1)
_START, _END = tag(7, FIXED64), tag(8, FIXED64)
_ATTRIBUTE, _EVENT, _STATUS = tag(9, BYTES), tag(11, BYTES), tag(15, BYTES)
# trace.v1.Span.Event and Status
_EVENT_TIME, _EVENT_NAME, _EVENT_ATTRIBUTE = tag(1, FIXED64), tag(2, BYTES), tag(3, BYTES)
_STATUS_MESSAGE, _STATUS_ERROR = tag(2, BYTES), tag(3, VARINT) + varint(2)

_STATES = frozenset({"state_interval", "state_nested"})
# Trace and span id, and in the second form the parent's, each behind its tag and length.
_pack_root = struct.Struct(">2sQQ2sQ").pack
_pack_child = struct.Struct(">2sQQ2sQ2sQ").pack
_pack_times = struct.Struct("<cQcQ").pack
_TRACE_ID, _SPAN_ID, _PARENT_ID = tag(1, BYTES) + b"\x10", tag(2, BYTES) + b"\x08", tag(4, BYTES) + b"\x08"


def encode_spans(batch: Batch) -> list[bytes]:
    """Return the completed spans of a batch with their instants, and the other instants as spans of their own."""
    if not len(batch.spans) and not len(batch.events):
        return []
    instants, events = _encode_events(batch) if len(batch.events) else ([], {})
    spans = [_encode_span(batch, row, events) for row in _rows(batch.spans) if row[6] >= 0]
    return spans + instants


def _encode_span(batch: Batch, row: tuple[Any, ...], events: dict[int, bytes]) -> bytes:
    span_id, high, low, parent, name, start, duration, segment, lane, status, error, step, session, values = row
    strings = batch.text
    name = strings(name) or ""
    segment, lane, error = strings(segment) or "", strings(lane), strings(error)
    process_id = batch.process.process_id
    found = _object(strings(values))
    found["monitor.trace_segment"] = segment
    found["process_id"] = process_id
    if segment in _STATES:
        found["state_name"] = name
        found["state_lane_id"] = lane or process_id
    elif lane is not None:
        found["lane"] = lane
    outcome = strings(status) or ""
    if outcome != "ok":
        found["monitor.status"] = outcome
    if error is not None:
        found["error.type"] = error
    if step != NO_STEP:
        found["step"] = step
    if session and "session_id" not in found:
        found["session_id"] = strings(session)
    body = _head(high, low, span_id, parent) + _NAME + text(name) + _KIND_INTERNAL
    body += _times(start, duration) + attributes(_ATTRIBUTE, found) + events.pop(span_id, b"")
    if outcome == "error":
        body += _STATUS + sized(_STATUS_MESSAGE + text(error or "") + _STATUS_ERROR)
    return ITEM + sized(body)


def _head(high: int, low: int, span_id: int, parent: int) -> bytes:
    if parent:
        return _pack_child(_TRACE_ID, high, low, _SPAN_ID, span_id, _PARENT_ID, parent)
    return _pack_root(_TRACE_ID, high, low, _SPAN_ID, span_id)


def _times(start_ns: int, duration_ns: int) -> bytes:
    start_ns = max(start_ns, 0)
    return _pack_times(_START, start_ns, _END, start_ns + duration_ns)


def _encode_events(batch: Batch) -> tuple[list[bytes], dict[int, bytes]]:
    """Return instants as spans of their own, and as events, by the id of a span that is complete in this batch."""
    ids, durations = batch.spans.column("span_id"), batch.spans.column("duration_ns")
    complete = {span_id for span_id, duration in zip(ids, durations, strict=True) if duration >= 0}
    instants: list[bytes] = []
    events: dict[int, bytes] = {}
    for number, row in enumerate(_rows(batch.events), start=len(batch.spans)):
        if row[2] in complete:
            events[row[2]] = events.get(row[2], b"") + _EVENT + sized(_encode_event(batch, row))
        else:
            instants.append(_encode_instant(batch, row, number))
    return instants, events


def _encode_event(batch: Batch, row: tuple[Any, ...]) -> bytes:
    time_ns, name, _span_id, _high, _low, _lane, step, session, values = row
    found = _object(batch.text(values)) | place(step, batch.text(session))
    head = _EVENT_TIME + fixed64(max(time_ns, 0)) + _EVENT_NAME + text(batch.text(name) or "")
    return head + attributes(_EVENT_ATTRIBUTE, found)


def _encode_instant(batch: Batch, row: tuple[Any, ...], number: int) -> bytes:
    """Return an instant as a span without length, under the span it happened in."""
    time_ns, name, parent, high, low, lane, step, session, values = row
    # The same batch always gives the same ids, so that a receiver can recognise what it already has.
    identity = f"{batch.process.process_id}/{batch.sequence}/{number}"
    span_id, own_high, own_low = struct.unpack(">QQQ", hashlib.blake2b(identity.encode(), digest_size=24).digest())
    if not high and not low:
        high, low, parent = own_high, own_low, 0
    found = _object(batch.text(values))
    found |= {"monitor.trace_segment": "event", "process_id": batch.process.process_id}
    if lane:
        found["lane"] = batch.text(lane)
    found |= place(step, batch.text(session))
    body = _head(high, low, span_id, parent) + _NAME + text(batch.text(name) or "") + _KIND_INTERNAL
    return ITEM + sized(body + _times(time_ns, 0) + attributes(_ATTRIBUTE, found))
