"""Converts OTLP log records to rows."""

from __future__ import annotations

import struct
import time
from typing import Any

from rl_insight.otlp.decode.rows import DecodedRows
from rl_insight.otlp.decode.values import as_text, plain, plain_value
from rl_insight.otlp.mapping import OTHER_LANE, level_of
from rl_insight.schema.json_values import json_text, whole_number
from rl_insight.schema.tables import LAST_TIME_NS

_TRACE = struct.Struct(">QQ").unpack
_SPAN = struct.Struct(">Q").unpack


class LogRows(DecodedRows):
    """Converts log records; the scope is the logger."""

    def add_scope(self, scope: Any) -> None:
        """Add all log records of one instrumentation scope."""
        now_ns = time.time_ns()
        logger = scope.scope.name or None
        for record in scope.log_records:
            attributes = plain(record.attributes)
            if record.event_name:
                attributes.setdefault("event.name", record.event_name)
            step = whole_number(attributes.pop("step", None))
            session = attributes.pop("session_id", None)
            lane = attributes.pop(OTHER_LANE, None)
            time_ns = record.time_unix_nano or record.observed_time_unix_nano or now_ns
            span_id, trace_id = record.span_id, record.trace_id
            self.builder.add_log(
                time_ns=min(time_ns, LAST_TIME_NS),
                level=level_of(record.severity_number, record.severity_text),
                message=as_text(plain_value(record.body)),
                logger=logger,
                span_id=_SPAN(span_id)[0] if len(span_id) == 8 else 0,
                trace=_TRACE(trace_id) if len(trace_id) == 16 else (0, 0),
                lane=None if lane is None else as_text(lane),
                step=step,
                session_id=None if session is None else as_text(session),
                attributes=json_text(attributes),
            )
