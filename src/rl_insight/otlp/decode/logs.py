"""Converts OTLP log records to rows; those that are reports of sessions become sessions."""

from __future__ import annotations

import struct
import time
from typing import Any

from rl_insight.otlp.decode.rows import DecodedRows
from rl_insight.otlp.decode.values import as_text, plain, plain_value
from rl_insight.otlp.mapping import EVENT_NAME, OTHER_LANE, SESSION_EVENT, SESSION_SCOPE, level_of
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
                attributes.setdefault(EVENT_NAME, record.event_name)
            time_ns = min(record.time_unix_nano or record.observed_time_unix_nano or now_ns, LAST_TIME_NS)
            if logger == SESSION_SCOPE and self._add_session(attributes, time_ns):
                continue
            step = whole_number(attributes.pop("step", None))
            session = attributes.pop("session_id", None)
            lane = attributes.pop(OTHER_LANE, None)
            span_id, trace_id = record.span_id, record.trace_id
            self.builder.add_log(
                time_ns=time_ns,
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

    def _add_session(self, attributes: dict[str, Any], time_ns: int) -> bool:
        """Add the report of a session that our encoder sent as a log record; return whether it is one."""
        fields = dict(attributes)
        event, session, status = (fields.pop(name, None) for name in (EVENT_NAME, "session_id", "status"))
        if event != SESSION_EVENT or session is None or status is None:
            return False
        task = fields.pop("task_id", None)
        self.builder.add_session(
            session_id=as_text(session),
            task_id=None if task is None else as_text(task),
            status=as_text(status),
            time_ns=time_ns,
            record=json_text(fields) or "{}",
        )
        return True
