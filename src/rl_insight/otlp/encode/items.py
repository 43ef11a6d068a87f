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
    EVENT_SEGMENT,
    LANE,
    OTHER_LANE,
    SEGMENT,
    STATE_NAME,
    STATE_SEGMENTS,
    STATUS,
    own_lane,
    severity,
)
from rl_insight.schema import NO_STEP, Batch
from rl_insight.schema.records import read_object

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
    spans = [row for row in batch.spans.rows() if with_open or row[6] >= 0]
    events: dict[int, list[EventItem]] = {row[0]: [] for row in spans} if len(batch.events) else {}
    instants: list[SpanItem] = []
    seen: dict[bytes, int] = {}
    for row in batch.events.rows():
        if row[2] in events:
            events[row[2]].append(_event(batch, row))
        else:
            instants.append(_instant(batch, row, seen))
    return [_span(batch, row, events.get(row[0], [])) for row in spans] + instants


def _span(batch: Batch, row: tuple[Any, ...], events: list[EventItem]) -> SpanItem:
    span_id, high, low, parent, name, start, duration, segment, lane, status, error, step, session, values = row
    strings = batch.text
    name = strings(name) or ""
    found = read_object(strings(values))
    found[SEGMENT] = segment = strings(segment) or ""
    lane = strings(lane)
    if segment in STATE_SEGMENTS:
        found[STATE_NAME] = name
        found[LANE] = lane or own_lane(batch.process)
        found["process_id"] = batch.process.process_id
    elif lane is not None:
        found.setdefault(LANE, lane)
    outcome, error = strings(status) or "", strings(error)
    if outcome not in {"ok", "open"}:
        found[STATUS] = outcome
    if error is not None:
        found["error.type"] = error
    _add_context(found, batch, step, session)
    start = max(start, 0)
    end = start + duration if duration >= 0 else 0
    message = (error or "") if outcome == "error" else None
    return SpanItem((high, low), span_id, parent, name, start, end, found, events, message)


def _add_context(found: dict[str, Any], batch: Batch, step: int, session: int) -> None:
    """Add the process, step and session of a span or event; attributes set by the user take precedence."""
    process = batch.process
    found.setdefault("process_id", process.process_id)
    if process.project:
        found.setdefault("project", process.project)
    if process.experiment_name:
        found.setdefault("experiment_name", process.experiment_name)
    _add_place(found, batch, step, session)


def _add_place(found: dict[str, Any], batch: Batch, step: int, session: int) -> None:
    if step != NO_STEP:
        found["step"] = step
    if session:
        found.setdefault("session_id", batch.text(session))


def _event(batch: Batch, row: tuple[Any, ...]) -> EventItem:
    time_ns, name, _span_id, _high, _low, _lane, step, session, values = row
    found = read_object(batch.text(values))
    _add_place(found, batch, step, session)
    return EventItem(max(time_ns, 0), batch.text(name) or "", found)


def _instant(batch: Batch, row: tuple[Any, ...], seen: dict[bytes, int]) -> SpanItem:
    """Return an event as a zero-length child span."""
    time_ns, name, parent, high, low, lane, step, session, values = row
    # The same event always gets the same id, live and exported, so that receivers can deduplicate it.
    texts = [batch.text(at) for at in (name, lane, session, values)]
    content = repr((batch.process.process_id, time_ns, parent, high, low, step, texts)).encode("utf-8", "replace")
    repeat = seen[content] = seen.get(content, -1) + 1
    digest = hashlib.blake2b(content, digest_size=24, salt=repeat.to_bytes(8, "little")).digest()
    span_id, own_high, own_low = struct.unpack(">QQQ", digest)
    if not high and not low:
        high, low, parent = own_high, own_low, 0
    found = read_object(texts[3])
    found[SEGMENT] = EVENT_SEGMENT
    if lane:
        found.setdefault(LANE, texts[1])
    _add_context(found, batch, step, session)
    time_ns = max(time_ns, 0)
    return SpanItem((high, low), span_id, parent, texts[0] or "", time_ns, time_ns, found, [])


def log_items(batch: Batch) -> list[LogItem]:
    """Return the log lines of a batch."""
    return [_log(batch, row) for row in batch.logs.rows()] if len(batch.logs) else []


def _log(batch: Batch, row: tuple[Any, ...]) -> LogItem:
    time_ns, level, logger, message, span_id, high, low, lane, step, session, values = row
    found = read_object(batch.text(values))
    if lane:
        found[OTHER_LANE] = batch.text(lane)
    _add_place(found, batch, step, session)
    scope, body = batch.text(logger) or "", batch.text(message) or ""
    return LogItem(scope, max(time_ns, 0), level, body, found, (high, low), span_id)


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
