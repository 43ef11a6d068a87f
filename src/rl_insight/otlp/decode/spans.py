"""Converts OTLP spans to rows.

This is the hot path of OTLP: a span costs about a dozen protobuf attribute accesses and little else. The spans of a
scope are added together, as columns.
"""

from __future__ import annotations

import struct
from typing import Any

from rl_insight.metrics.totals import TotalsTable
from rl_insight.otlp.decode.rows import DecodedRows
from rl_insight.otlp.decode.values import as_text, plain
from rl_insight.otlp.mapping import (
    EVENT_SEGMENT,
    GEN_AI_OPERATION,
    GEN_AI_PHASES,
    GEN_AI_SESSIONS,
    LANE,
    OTHER_LANE,
    SEGMENT,
    STATE_NAME,
    STATUS,
    own_lane,
)
from rl_insight.schema import NO_STEP, Process
from rl_insight.schema.agent_loop import TRACE_SOURCE, read_agent_span, session_row
from rl_insight.schema.json_values import json_text, whole_number
from rl_insight.schema.names import DURATION_SEGMENT, PHASE_SEGMENT, original_of
from rl_insight.schema.tables import LAST_TIME_NS, OPEN

_IDS = struct.Struct(">QQQ").unpack
_ID = struct.Struct(">Q").unpack
_ERROR = 2
_KINDS = ("", "", "server", "client", "producer", "consumer")
"""By number; "internal", the kind of nearly every span, is omitted to save space."""
_KNOWN = frozenset(
    {
        SEGMENT, STATE_NAME, LANE, OTHER_LANE, STATUS, "process_id", "project", "experiment_name", "step", "rl.step",
        "session_id", "error.type", TRACE_SOURCE, GEN_AI_OPERATION,
    }
)  # fmt: skip
"""Attributes with a column, and those that repeat fields of the process."""
_IDENTITY = ("span_id", "trace_high", "trace_low", "parent_id", "name", "start_ns", "duration_ns", "attributes")
_CONTEXT = ("segment", "lane", "status", "error", "step", "session_id")
"""The columns that are the same for most spans."""


class SpanRows(DecodedRows):
    """Converts spans, their events, and events that were sent as spans."""

    def __init__(self, process: Process, totals: TotalsTable) -> None:
        super().__init__(process, totals)
        text = self.builder.text
        self._plain_columns = (text(DURATION_SEGMENT), 0, text("ok"), 0, NO_STEP, 0)
        # Imported spans carry the id of the process that recorded them.
        self._own_lanes = (process.process_id, original_of(process.process_id), own_lane(process))

    def add_scope(self, scope: Any) -> None:
        """Add all spans of one instrumentation scope."""
        builder, text = self.builder, self.builder.text
        rows: list[tuple[int, ...]] = []
        for span in scope.spans:
            trace_id, span_id = span.trace_id, span.span_id
            if len(trace_id) != 16 or len(span_id) != 8 or not any(span_id):
                self.reject("a span without a trace id of 16 bytes and a span id of 8 bytes")
                continue
            start = span.start_time_unix_nano
            if not 0 < start < LAST_TIME_NS:
                self.reject("a span without a start time")
                continue
            high, low, number = _IDS(trace_id + span_id)
            parent = span.parent_span_id
            parent_number = _ID(parent)[0] if len(parent) == 8 else 0
            attributes = plain(span.attributes)
            self._note_details(span, attributes)
            end = span.end_time_unix_nano
            duration = end - start if start < end < LAST_TIME_NS else 0
            if _is_open(span, attributes.get(SEGMENT)):
                duration = OPEN
            # SDKs set an empty status on every span; only errors matter.
            if span.status.code == _ERROR or not _KNOWN.isdisjoint(attributes):
                found = self._columns(span, attributes)
                if found is None:
                    self._add_instant(span, attributes, (high, low), parent_number)
                    continue
                name, columns = found
            else:
                name, columns = span.name, self._plain_columns
            json = text(json_text(attributes))
            rows.append((number, high, low, parent_number, text(name), start, duration, json, *columns))
            if span.events:
                self._add_events(span, (high, low), number, columns)
        if rows:
            builder.add_spans(**dict(zip((*_IDENTITY, *_CONTEXT), zip(*rows, strict=True), strict=True)))

    @staticmethod
    def _note_details(span: Any, attributes: dict[str, Any]) -> None:
        """Keep the span kind and links, which have no column, as attributes."""
        kind = span.kind
        if 2 <= kind < len(_KINDS):
            attributes["span.kind"] = _KINDS[kind]
        if span.links:
            attributes["span.links"] = [
                {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex()} for link in span.links
            ]

    def _columns(self, span: Any, attributes: dict[str, Any]) -> tuple[str, tuple[int, ...]] | None:
        """Return the name, and the columns of `_CONTEXT`; None for an event that was sent as a span."""
        text, take = self.builder.text, attributes.pop
        agent = read_agent_span(attributes) if TRACE_SOURCE in attributes else None
        row = session_row(attributes, span.start_time_unix_nano, span.end_time_unix_nano) if agent else None
        if row is not None:
            self.builder.add_session(**{**row, "record": json_text(row["record"]) or "{}"})
        segment = take(SEGMENT, None)
        is_open = _is_open(span, segment)
        if segment == EVENT_SEGMENT:
            return None
        name = take(STATE_NAME, None) or span.name
        lane = take(LANE, None) or take(OTHER_LANE, None)
        attributes.pop(OTHER_LANE, None)
        if lane is not None and lane in (attributes.get("process_id"), *self._own_lanes):
            lane = None  # the process's own lane
        self._drop_repeated(attributes)
        step = whole_number(take("step", take("rl.step", None)))
        attributes.pop("rl.step", None)
        session = take("session_id", None)
        if agent is not None:
            session, segment = agent.session_id, agent.segment or segment
            step = agent.step if step is None else step
        if GEN_AI_OPERATION in attributes:
            if session is None:
                session = next((attributes[key] for key in GEN_AI_SESSIONS if key in attributes), None)
            if session is not None and segment is None:
                name, segment = _as_phase(as_text(name), attributes)
        status, error = self._status(span, attributes)
        return as_text(name), (
            text(as_text(segment)) if segment else self._plain_columns[0],
            text(as_text(lane)) if lane is not None else 0,
            text("open" if is_open else status),
            text(error),
            NO_STEP if step is None else step,
            text(as_text(session)) if session is not None else 0,
        )

    def _drop_repeated(self, attributes: dict[str, Any]) -> None:
        attributes.pop("process_id", None)
        for key, value in (("project", self.process.project), ("experiment_name", self.process.experiment_name)):
            if attributes.get(key) == value:
                attributes.pop(key, None)

    @staticmethod
    def _status(span: Any, attributes: dict[str, Any]) -> tuple[str, str | None]:
        reported = attributes.pop(STATUS, None)
        kind = attributes.pop("error.type", None)
        if span.status.code != _ERROR and reported not in {"error", "cancelled"}:
            return "ok", as_text(kind) if kind is not None else None
        message = span.status.message
        if kind is None:
            kind = _exception_type(span)
        if message and message != kind:
            attributes["status.message"] = message
        return ("cancelled" if reported == "cancelled" else "error"), as_text(kind) if kind is not None else None

    def _add_events(self, span: Any, trace: tuple[int, int], number: int, columns: tuple[int, ...]) -> None:
        builder = self.builder
        _, lane, _, _, step, session = columns
        for event in span.events:
            attributes = json_text(plain(event.attributes)) if event.attributes else None
            time_ns = min(event.time_unix_nano, LAST_TIME_NS) or span.start_time_unix_nano
            builder.events.extend(
                (time_ns, builder.text(event.name), number, *trace, lane, step, session, builder.text(attributes))
            )

    def _add_instant(self, span: Any, attributes: dict[str, Any], trace: tuple[int, int], parent: int) -> None:
        """Add an event that our encoder sent as a zero-length span."""
        self._drop_repeated(attributes)
        lane = attributes.pop(LANE, None) or attributes.pop(OTHER_LANE, None)
        session = attributes.pop("session_id", None)
        self.builder.add_event(
            time_ns=span.start_time_unix_nano,
            name=span.name,
            span_id=parent,
            trace=trace if parent else (0, 0),
            lane=None if lane is None else as_text(lane),
            step=whole_number(attributes.pop("step", None)),
            session_id=None if session is None else as_text(session),
            attributes=json_text(attributes),
        )


def _is_open(span: Any, segment: Any) -> bool:
    """Return whether a span had not ended when it was exported by us; other senders omit the end by mistake."""
    return segment is not None and not span.end_time_unix_nano


def _as_phase(name: str, attributes: dict[str, Any]) -> tuple[str, str | None]:
    """Return the name and segment of a model or tool call, which is a phase of its session."""
    phase = GEN_AI_PHASES.get(as_text(attributes[GEN_AI_OPERATION]))
    if phase is None:
        return name, None
    attributes["span.name"] = name
    return phase, PHASE_SEGMENT


def _exception_type(span: Any) -> str | None:
    for event in span.events:
        if event.name == "exception":
            return as_text(plain(event.attributes).get("exception.type")) or None
    return None
