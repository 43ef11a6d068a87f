"""Maps rows of a batch to OTLP items, independent of the encoding.

`encode.protobuf` and `encode.json` both encode these items, so live forwarding and exports agree.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from rl_insight.otlp.mapping import (
    EVENT_NAME,
    EVENT_SEGMENT,
    LANE,
    OTHER_LANE,
    SEGMENT,
    SESSION_EVENT,
    SESSION_SCOPE,
    STATE_NAME,
    STATUS,
    own_lane,
    severity,
)
from rl_insight.schema import NO_STEP, Batch
from rl_insight.schema.names import STATE_SEGMENTS
from rl_insight.schema.records import read_object
from rl_insight.sessions.model import FAILED, PENDING

SCOPE = "rl_insight"
"""The scope of spans and metrics; the scope of a log record is its logger."""
EXPONENTIAL_SCALE = 4
"""Our buckets, 16 per octave, match an exponential histogram of this scale exactly."""
_BUCKET_ORIGIN = 32768
_SMALLEST, _LARGEST = -1075 * 16, 1024 * 16
"""The range of valid buckets; codes from faulty producers are clamped to it."""


class EventItem(NamedTuple):
    """An event on a span."""

    time_ns: int
    name: str
    attributes: dict[str, Any]


class SpanItem(NamedTuple):
    """A span."""

    trace: tuple[int, int]
    span_id: int
    parent_id: int
    """0 for none."""
    name: str
    start_ns: int
    end_ns: int
    """0 if it is open."""
    attributes: dict[str, Any]
    events: list[EventItem]
    error: str | None = None
    """The message of an error status; None without an error."""


class LogItem(NamedTuple):
    """A log record."""

    scope: str
    time_ns: int
    level: int
    """As in the `logging` module."""
    body: str
    attributes: dict[str, Any]
    trace: tuple[int, int] = (0, 0)
    span_id: int = 0

    @property
    def severity(self) -> int:
        """The OTLP severity number."""
        return severity(self.level)

    @property
    def severity_text(self) -> str:
        """The name of the level."""
        return logging.getLevelName(self.level)


class ExponentialBuckets(NamedTuple):
    """Adjacent buckets of an exponential histogram."""

    offset: int
    counts: list[int]


def span_items(batch: Batch, *, with_open: bool = False) -> list[SpanItem]:
    """Return the completed spans of a batch with their events, and all other events as zero-length spans.

    Open spans are skipped, since they come again in a later batch when they complete, unless `with_open` is set.
    """
    spans = [row for row in batch.spans.rows() if with_open or row.duration_ns >= 0]
    events: dict[int, list[EventItem]] = {row.span_id: [] for row in spans} if len(batch.events) else {}
    instants: list[SpanItem] = []
    seen: dict[bytes, int] = {}
    for row in batch.events.rows():
        if row.span_id in events:
            events[row.span_id].append(_event(batch, row))
        else:
            instants.append(_instant(batch, row, seen))
    return [_span(batch, row, events.get(row.span_id, [])) for row in spans] + instants


def _span(batch: Batch, row: Any, events: list[EventItem]) -> SpanItem:
    text = batch.text
    name, segment, lane, error = text(row.name) or "", text(row.segment) or "", text(row.lane), text(row.error)
    outcome = text(row.status) or ""
    found = read_object(text(row.attributes))
    found[SEGMENT] = segment
    if segment in STATE_SEGMENTS:
        found[STATE_NAME] = name
        found[LANE] = lane or own_lane(batch.process)
        found["process_id"] = batch.process.process_id
    elif lane is not None:
        found.setdefault(LANE, lane)
    if outcome not in {"ok", "open"}:
        found[STATUS] = outcome
    if error is not None:
        found["error.type"] = error
    _add_context(found, batch, row)
    start = max(row.start_ns, 0)
    end = start + row.duration_ns if row.duration_ns >= 0 else 0
    message = (error or "") if outcome == "error" else None
    trace = (row.trace_high, row.trace_low)
    return SpanItem(trace, row.span_id, row.parent_id, name, start, end, found, events, message)


def _add_context(found: dict[str, Any], batch: Batch, row: Any) -> None:
    """Add the process, step and session of a span or event; attributes set by the user take precedence."""
    process = batch.process
    found.setdefault("process_id", process.process_id)
    if process.project:
        found.setdefault("project", process.project)
    if process.experiment_name:
        found.setdefault("experiment_name", process.experiment_name)
    _add_place(found, batch, row)


def _add_place(found: dict[str, Any], batch: Batch, row: Any) -> None:
    if row.step != NO_STEP:
        found["step"] = row.step
    if row.session_id:
        found.setdefault("session_id", batch.text(row.session_id))


def _event(batch: Batch, row: Any) -> EventItem:
    found = read_object(batch.text(row.attributes))
    _add_place(found, batch, row)
    return EventItem(max(row.time_ns, 0), batch.text(row.name) or "", found)


def _instant(batch: Batch, row: Any, seen: dict[bytes, int]) -> SpanItem:
    """Return an event as a zero-length child span."""
    time_ns, parent, high, low = row.time_ns, row.span_id, row.trace_high, row.trace_low
    # The same event always gets the same id, live and exported, so that receivers can deduplicate it.
    texts = [batch.text(at) for at in (row.name, row.lane, row.session_id, row.attributes)]
    content = repr((batch.process.process_id, time_ns, parent, high, low, row.step, texts)).encode("utf-8", "replace")
    repeat = seen[content] = seen.get(content, -1) + 1
    digest = hashlib.blake2b(content, digest_size=24, salt=repeat.to_bytes(8, "little")).digest()
    span_id, own_high, own_low = struct.unpack(">QQQ", digest)
    if not high and not low:
        high, low, parent = own_high, own_low, 0
    found = read_object(texts[3])
    found[SEGMENT] = EVENT_SEGMENT
    if row.lane:
        found.setdefault(LANE, texts[1])
    _add_context(found, batch, row)
    time_ns = max(time_ns, 0)
    return SpanItem((high, low), span_id, parent, texts[0] or "", time_ns, time_ns, found, [])


def log_items(batch: Batch) -> list[LogItem]:
    """Return the log lines of a batch."""
    return [_log(batch, row) for row in batch.logs.rows()] if len(batch.logs) else []


def _log(batch: Batch, row: Any) -> LogItem:
    found = read_object(batch.text(row.attributes))
    if row.lane:
        found[OTHER_LANE] = batch.text(row.lane)
    _add_place(found, batch, row)
    scope, body = batch.text(row.logger) or "", batch.text(row.message) or ""
    trace = (row.trace_high, row.trace_low)
    return LogItem(scope, max(row.time_ns, 0), row.level, body, found, trace, row.span_id)


def session_items(batch: Batch, *, with_open: bool = False) -> list[LogItem]:
    """Return a log record for each ended session of a batch, with all fields reported by its owner.

    Open sessions are skipped, since they come again in a later batch when they end, unless `with_open` is set.
    """
    if not len(batch.sessions):
        return []
    found = []
    for session_at, task_at, status_at, time_ns, record_at in batch.sessions.rows():
        session_id, status = batch.text(session_at) or "", batch.text(status_at) or PENDING
        if status == PENDING and not with_open:
            continue
        fields = read_object(batch.text(record_at))
        fields |= {"session_id": session_id, "status": status, EVENT_NAME: SESSION_EVENT}
        if task_at:
            fields["task_id"] = batch.text(task_at)
        level = logging.ERROR if status == FAILED else logging.INFO
        found.append(LogItem(SESSION_SCOPE, max(time_ns, 0), level, f"session {session_id} {status}", fields))
    return found


def exponential_buckets(buckets: Mapping[int, int]) -> tuple[int, ExponentialBuckets, ExponentialBuckets]:
    """Return buckets by code (see `rl_insight.schema.histogram`) as zero count, positive and negative buckets."""
    sides: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for code, count in buckets.items():
        if code:
            side = sides[code < 0]
            index = min(max(abs(code) - _BUCKET_ORIGIN, _SMALLEST), _LARGEST)
            side[index] = side.get(index, 0) + count
    return buckets.get(0, 0), _dense(sides[0]), _dense(sides[1])


def _dense(counts: dict[int, int]) -> ExponentialBuckets:
    if not counts:
        return ExponentialBuckets(0, [])
    first, last = min(counts), max(counts)
    return ExponentialBuckets(first, [counts.get(index, 0) for index in range(first, last + 1)])
