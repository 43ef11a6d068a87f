"""OTLP log records to rows of a batch."""

from __future__ import annotations

import logging
import struct
from typing import Any

from rl_insight.schema import BatchBuilder
from rl_insight.server.otlp.attributes import as_text, as_whole_number, json_text, plain, plain_value

_TRACE = struct.Struct(">QQ").unpack
_SPAN = struct.Struct(">Q").unpack
_LAST_NS = 2**62
_LEVELS = (5, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""By the severity number's group of four: trace, debug, info, warn, error, fatal."""
_NAMES = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "CRITICAL": logging.CRITICAL,
}


def level_of(severity_number: int, severity_text: str) -> int:
    """Return the level as in `logging`.

    >>> level_of(9, ""), level_of(17, ""), level_of(0, "warn")
    (20, 40, 30)
    """
    if 1 <= severity_number <= 24:
        return _LEVELS[(severity_number - 1) // 4]
    return _NAMES.get(severity_text.upper(), logging.INFO)


def add_scope_logs(builder: BatchBuilder, scope_logs: Any, now_ns: int) -> None:
    """Add all log records of one instrumentation scope."""
    scope = scope_logs.scope.name or None
    for record in scope_logs.log_records:
        attributes = plain(record.attributes)
        if record.event_name:
            attributes.setdefault("event.name", record.event_name)
        step = as_whole_number(attributes.pop("step", None))
        session = attributes.pop("session_id", None)
        lane = attributes.pop("lane", None)
        time_ns = record.time_unix_nano or record.observed_time_unix_nano or now_ns
        span_id, trace_id = record.span_id, record.trace_id
        builder.add_log(
            time_ns=min(time_ns, _LAST_NS),
            level=level_of(record.severity_number, record.severity_text),
            message=as_text(plain_value(record.body)),
            logger=scope,
            span_id=_SPAN(span_id)[0] if len(span_id) == 8 else 0,
            trace=_TRACE(trace_id) if len(trace_id) == 16 else (0, 0),
            lane=None if lane is None else as_text(lane),
            step=step,
            session_id=None if session is None else as_text(session),
            attributes=json_text(attributes),
        )
