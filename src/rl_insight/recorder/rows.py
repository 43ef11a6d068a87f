"""Spans, events, log lines and sessions as rows of a batch; used only by the flusher's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import add, sub
from typing import Any

import msgspec
from msgspec.structs import astuple

from rl_insight.recorder.attributes import AttributeEncoder
from rl_insight.recorder.context import step_of
from rl_insight.recorder.losses import safe_text, short_text
from rl_insight.recorder.recorder import LOG, PointEvent, Recorder
from rl_insight.recorder.redaction import DROPPED, MASK, CleanNames, Redactor
from rl_insight.recorder.sessions import Session
from rl_insight.recorder.spans import STILL_OPEN, Span
from rl_insight.recorder.text_sample import TextSample
from rl_insight.schema import NO_STEP, OPEN, BatchBuilder
from rl_insight.schema.agent_loop import TRACE_SOURCE, read_agent_span, session_row
from rl_insight.schema.builder import TextTable
from rl_insight.schema.captured_text import CAPTURED_TEXT
from rl_insight.schema.names import TEXTS_EVENT
from rl_insight.sessions.model import FAILED, PENDING

_SPECIAL = {"step", TRACE_SOURCE}
"""Attributes that also set other columns of a span."""
_TEXT_OR_NONE = {str, type(None)}

_encode_json = msgspec.json.Encoder().encode


class RowWriter:
    """Adds recorded events to batches: named, bounded, and without secrets. Each method returns whether one failed."""

    def __init__(self, recorder: Recorder, attributes: AttributeEncoder, redactor: Redactor) -> None:
        self._recorder = recorder
        self._names = CleanNames(redactor)
        self._attributes = attributes
        self._redactor = redactor

    def add_spans(self, spans: Sequence[Span], builder: BatchBuilder) -> bool:
        """Add spans, all or none. Each column is built in one pass, mostly without Python code per span."""
        offset_ns, sample = self._recorder.clock.offset_ns, self._recorder.texts
        columns: Any = zip(*map(astuple, spans))  # noqa: B905  # a state has more fields than a span: left out
        _, name, attributes, segment, lane, _, start, end, span_id, parent_id, trace_high, trace_low, *rest = columns
        step, session_id, status, error = rest[:4]
        sessions: list[dict[str, Any]] = []
        special: list[int] = []
        keys: set[str] = set().union(*filter(None, attributes))
        if not _SPECIAL.isdisjoint(keys):
            special = [at for at, given in enumerate(attributes) if given and not _SPECIAL.isdisjoint(given)]
            segment, step, session_id = list(segment), list(step), list(session_id)
        for at in special:
            given = attributes[at]
            if step[at] is None and "step" in given:
                step[at] = step_of(given["step"])
            if TRACE_SOURCE in given and (found := read_agent_span(given)) is not None:
                segment[at], session_id[at] = found.segment or segment[at], found.session_id
                step[at] = found.step if step[at] is None else step[at]
                row = session_row(given, start[at] + offset_ns, end[at] + offset_ns) if end[at] else None
                sessions += [row] if row is not None else []
        duration = list(map(sub, end, start))
        is_open = 0 in end
        if is_open or min(duration) < 0:
            duration = [max(after - before, 0) if after else OPEN for before, after in zip(start, end, strict=True)]
        if is_open:
            status = [outcome if ended else STILL_OPEN for outcome, ended in zip(status, end, strict=True)]
        texts = builder.texts
        hidden: set[int] = set()
        if sample is not None and not CAPTURED_TEXT.isdisjoint(keys):
            hidden = {
                at
                for at, given in enumerate(attributes)
                if given
                and session_id[at] is not None
                and not CAPTURED_TEXT.isdisjoint(given)
                and not sample.shows(spans[at], short_text(session_id[at]), step[at], start[at] + offset_ns)
            }
        builder.add_spans(
            span_id=span_id,
            trace_high=trace_high,
            trace_low=trace_low,
            parent_id=parent_id,
            name=_positions(self._names.of, name, texts),
            start_ns=list(map(add, start, repeat(offset_ns))),
            duration_ns=duration,
            segment=_positions(_short, segment, texts),
            lane=_positions(_short, lane, texts),
            status=_positions(_short, status, texts),
            error=_positions(_short, error, texts),
            step=[NO_STEP if number is None else number for number in step],
            session_id=_positions(_short, session_id, texts),
            attributes=texts.of_column(self._attributes.encode_all(attributes, keys, hidden)),
        )
        for row in sessions:
            builder.add_session(**{**row, "record": self._attributes.encode(row["record"]) or "{}"})
        return any(error)

    def add_point(self, point: PointEvent, builder: BatchBuilder) -> bool:
        """Add an event or a log line; an error line counts as a failure."""
        kind, reading, level, name, attributes, span, step, session_id, source = point
        context: dict[str, Any] = {
            "time_ns": reading + self._recorder.clock.offset_ns,
            "step": step,
            "session_id": _short(session_id),
            "attributes": self._encoded(attributes, session_id, step),
        }
        if span is not None:
            context.update(span_id=span.span_id, trace=(span.trace_high, span.trace_low), lane=_short(span.lane))
        if kind != LOG:
            builder.add_event(name=self._names.of(name), **context)
            return False
        number = level if -(2**31) <= level < 2**31 else logging.INFO
        builder.add_log(level=number, message=self._message(name), logger=short_text(source) or None, **context)
        return bool(number >= logging.ERROR)

    def _encoded(self, attributes: dict[str, Any], session_id: str | None, step: int | None) -> str | None:
        has_text = self._recorder.texts is not None and not CAPTURED_TEXT.isdisjoint(attributes)
        is_hidden = has_text and session_id is not None and not self._recorder.takes_text(session_id, step)
        return self._attributes.encode(attributes, is_hidden=is_hidden)

    def _message(self, message: Any) -> str:
        """Return a log line's text, bounded and without secrets."""
        text = self._redactor.call_function("message", safe_text(message))
        clean = self._attributes.text("message", safe_text(text))
        return MASK if clean is DROPPED else str(clean)

    def add_session(self, session: Session, builder: BatchBuilder) -> bool:
        """Add a snapshot of a session."""
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
        """Record the held text of a session whose outcome makes it interesting."""
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
                    lane=_short(session.lane),
                    attributes=self._attributes.encode(held.texts),
                )


def _short(value: Any) -> str | None:
    return None if value is None else short_text(value)


def _positions(clean: Callable[[Any], str | None], column: Sequence[Any], texts: TextTable) -> list[int]:
    """Return the positions of a column's strings in the batch; each distinct string is cleaned once."""
    first = column[0]
    if (first is None or first.__class__ is str) and column.count(first) == len(column):
        return [texts[clean(first)]] * len(column)
    if not set(map(type, column)) <= _TEXT_OR_NONE:
        return [texts[clean(value)] for value in column]
    positions = {text: texts[clean(text)] for text in dict.fromkeys(column)}
    return list(map(positions.__getitem__, column))
