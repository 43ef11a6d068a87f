"""Log lines of a batch as OTLP's bytes."""

from __future__ import annotations

import logging
import struct

from rl_insight.collector.sinks.otlp.values import ITEM, any_value, attributes, place
from rl_insight.collector.sinks.protobuf import BYTES, FIXED64, VARINT, fixed64, sized, tag, text, varint
from rl_insight.schema import Batch
from rl_insight.schema.records import _object, _rows

# logs.v1.LogRecord
_TIME, _SEVERITY, _SEVERITY_TEXT = tag(1, FIXED64), tag(2, VARINT), tag(3, BYTES)
_BODY, _ATTRIBUTE = tag(5, BYTES), tag(6, BYTES)
_TRACE_ID, _SPAN_ID = tag(9, BYTES) + b"\x10", tag(10, BYTES) + b"\x08"
_OBSERVED_TIME = tag(11, FIXED64)

_pack_trace = struct.Struct(">QQ").pack
_pack_span = struct.Struct(">Q").pack


def severity(level: int) -> int:
    """Return OTLP's severity number for a level of the `logging` module.

    >>> [severity(level) for level in (5, 10, 20, 25, 30, 40, 50, 90)]
    [1, 5, 9, 11, 13, 17, 21, 24]
    """
    if level < logging.DEBUG:
        return 1
    if level >= logging.CRITICAL + 10:
        return 24
    decade, rest = divmod(level, 10)
    return 4 * decade + 1 + rest * 4 // 10


def encode_logs(batch: Batch) -> list[tuple[str, bytes]]:
    """Return the log lines of a batch, each with its logger, which is the scope."""
    return [_encode_log(batch, row) for row in _rows(batch.logs)] if len(batch.logs) else []


def _encode_log(batch: Batch, row: tuple[int, ...]) -> tuple[str, bytes]:
    time_ns, level, logger, message, span_id, high, low, lane, step, session, values = row
    found = _object(batch.text(values))
    if lane:
        found["lane"] = batch.text(lane)
    found |= place(step, batch.text(session))
    stamp = fixed64(max(time_ns, 0))
    body = _TIME + stamp + _OBSERVED_TIME + stamp + _SEVERITY + varint(severity(level))
    body += _SEVERITY_TEXT + text(logging.getLevelName(level))
    body += _BODY + sized(any_value(batch.text(message) or "")) + attributes(_ATTRIBUTE, found)
    if high or low:
        body += _TRACE_ID + _pack_trace(high, low)
    if span_id:
        body += _SPAN_ID + _pack_span(span_id)
    return batch.text(logger) or "", ITEM + sized(body)
