"""Events, log lines and sessions on their way into a batch; for the flusher."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from rl_insight.recorder.attributes import AttributeEncoder
from rl_insight.recorder.losses import safe_text, short_text
from rl_insight.recorder.names import CleanNames
from rl_insight.recorder.recorder import LOG, PointEvent, Recorder
from rl_insight.recorder.redaction import DROPPED, MASK, Redactor
from rl_insight.recorder.sessions import Session
from rl_insight.recorder.text_sample import TextSample
from rl_insight.schema import BatchBuilder
from rl_insight.schema.captured_text import CAPTURED_TEXT
from rl_insight.schema.names import TEXTS_EVENT
from rl_insight.sessions.model import FAILED, PENDING

_encode_json = msgspec.json.Encoder().encode


class EncodedRecords:
    """Turns what was recorded into rows: named, bounded, and without secrets."""

    def __init__(self, recorder: Recorder, names: CleanNames, attributes: AttributeEncoder, redactor: Redactor) -> None:
        self._recorder = recorder
        self._names = names
        self._attributes = attributes
        self._redactor = redactor

    def add_point(self, point: PointEvent, builder: BatchBuilder) -> bool:
        """Add an event or a log line; returns whether it tells of a failure."""
        kind, reading, level, name, attributes, span, step, session_id, source = point
        context: dict[str, Any] = {
            "time_ns": reading + self._recorder.clock.offset_ns,
            "step": step,
            "session_id": None if session_id is None else short_text(session_id),
            "attributes": self._encoded(attributes, session_id, step),
        }
        if span is not None:
            lane = None if span.lane is None else short_text(span.lane)
            context.update(span_id=span.span_id, trace=(span.trace_high, span.trace_low), lane=lane)
        if kind != LOG:
            builder.add_event(name=self._names.of(name), **context)
            return False
        number = level if -(2**31) <= level < 2**31 else logging.INFO
        builder.add_log(level=number, message=self._message(name), logger=short_text(source) or None, **context)
        return bool(number >= logging.ERROR)

    def _encoded(self, attributes: dict[str, Any], session_id: str | None, step: int | None) -> str | None:
        if session_id is None or self._recorder.texts is None or CAPTURED_TEXT.isdisjoint(attributes):
            return self._attributes.encode(attributes)
        is_taken = self._recorder.takes_text(session_id, step)
        return self._attributes.encode(attributes) if is_taken else self._attributes.encode_hidden(attributes)

    def _message(self, message: Any) -> str:
        """Return a log line's text, bounded and without secrets."""
        text = self._redactor.call_function("message", safe_text(message))
        clean = self._attributes.text("message", safe_text(text))
        return MASK if clean is DROPPED else str(clean)

    def add_session(self, session: Session, builder: BatchBuilder) -> bool:
        """Add a snapshot of a session; returns whether it has failed."""
        recorder = self._recorder
        now = recorder.now()
        known, given = session.snapshot(recorder.clock.offset_ns)
        record = _encode_json(known).decode()
        if text := self._attributes.encode(given):
            record = f"{record[:-1]},{text[1:]}"
        if recorder.texts is not None and session.final_status is not None:
            self._add_late_texts(session, recorder.texts, builder)
        builder.add_session(
            session_id=short_text(session.session_id),
            task_id=None if session.task_id is None else self._names.of(session.task_id),
            status=session.final_status or PENDING,
            time_ns=now + recorder.clock.offset_ns,
            record=record,
        )
        return session.final_status == FAILED

    def _add_late_texts(self, session: Session, sample: TextSample, builder: BatchBuilder) -> None:
        """Record the texts of a session of which it turns out at its end that they are of interest."""
        session_id, clock = short_text(session.session_id), self._recorder.clock
        started_ns, failed = clock.wall_ns(session.start), session.final_status == FAILED
        for held in sample.settle(session_id, session.step, started_ns, failed=failed, reward=session.reward):
            if sample.has_room(session_id, held.characters):
                builder.add_event(
                    time_ns=held.time + clock.offset_ns,
                    name=TEXTS_EVENT,
                    span_id=held.span_id,
                    trace=(session.trace_high, session.trace_low),
                    step=session.step,
                    session_id=session_id,
                    lane=None if session.lane is None else short_text(session.lane),
                    attributes=self._attributes.encode(held.texts),
                )
