"""The transcript of a session: the text in its spans and events, as a conversation."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rl_insight.schema.names import SESSION_SEGMENT, TEXTS_EVENT
from rl_insight.sessions.transcript import TextSource, TranscriptMessage, carries_text, is_message_event, transcript
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.logs import EventConditions, LogConditions, search_events, search_logs
from rl_insight.store.queries.sessions import SessionConditions, sessions
from rl_insight.store.queries.spans import SpanConditions, search_spans
from rl_insight.store.tables import SECOND

MAX_CHARACTERS: Final = 4_000_000
_MAX_SOURCES: Final = 5_000


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """The messages and tool calls of a session, in order, and its outcome."""

    session_id: str
    task_id: str | None
    status: str
    reason: str | None
    step: int | None
    reward: float | None
    tokens: int | None
    messages: list[TranscriptMessage]
    is_captured: bool
    """Whether any text was recorded: false if `recorder.capture_text` is off, or the session is not in the sample of
    its step."""
    characters: int
    """The length of all text, including text not recorded or not in this answer."""
    is_cut: bool
    """Whether text in this answer is truncated."""


def session_transcript(cursor: Cursor, session_id: str, max_characters: int = 1_000_000) -> Transcript | None:
    """Return a session as a conversation: prompt, turns, tool calls and reward, from the recorded text."""
    found, _ = sessions(cursor, SessionConditions(session_id=session_id), limit=1, detail="brief")
    if not found:
        return None
    session = found[0]
    messages = transcript(_sources(cursor, session_id))
    kept, is_cut = _bounded(messages, max_characters)
    return Transcript(
        session_id=session_id,
        task_id=session.task_id,
        status=session.status,
        reason=session.reason,
        step=session.step,
        reward=session.reward,
        tokens=session.tokens,
        messages=kept,
        is_captured=any(one.text is not None or one.arguments is not None for one in messages),
        characters=sum(one.characters + one.arguments_characters for one in messages),
        is_cut=is_cut,
    )


def _sources(cursor: Cursor, session_id: str) -> list[TextSource]:
    sources: list[TextSource] = []
    by_span: dict[str, TextSource] = {}
    spans = search_spans(cursor, SpanConditions(session_id=session_id), order="oldest", limit=_MAX_SOURCES)
    # The span ids of a process are in order of start.
    for span in sorted(spans, key=lambda one: (one.start_ns, one.span_id)):
        start_ts = span.start_ns / SECOND
        source = TextSource(
            name=span.name,
            start_ts=start_ts,
            end_ts=None if span.duration_ns is None else start_ts + span.duration_ns / SECOND,
            outcome=span.status,
            attributes=span.attributes,
            span_id=span.span_id,
            is_session=span.segment == SESSION_SEGMENT,
        )
        by_span[span.span_id] = source
        sources.append(source)
    for event in search_events(cursor, EventConditions(session_id=session_id), newest_first=False, limit=_MAX_SOURCES):
        known = by_span.get(event.span_id or "")
        if event.name == TEXTS_EVENT and known is not None:
            known.attributes = {**known.attributes, **event.attributes}
        else:
            sources.append(_of_event(event.name, event.time_ns, event.attributes, known))
    for line in search_logs(cursor, LogConditions(session_id=session_id), newest_first=False, limit=_MAX_SOURCES):
        name = str(line.attributes.get("event.name", ""))
        if is_message_event(name):
            attributes = {**line.attributes, "body": line.message}
            sources.append(_of_event(name, line.time_ns, attributes, by_span.get(line.span_id or "")))
    return [one for one in sources if carries_text(one.attributes) or (one.is_event and is_message_event(one.name))]


def _of_event(name: str, time_ns: int, attributes: dict[str, Any], span: TextSource | None) -> TextSource:
    """Return an event as a source; it gets the token counts of its span."""
    usage = {} if span is None else {key: value for key, value in span.attributes.items() if "usage" in key}
    return TextSource(
        name=name,
        start_ts=time_ns / SECOND,
        attributes=usage | attributes,
        span_id=None if span is None else span.span_id,
        is_event=True,
    )


def _bounded(messages: list[TranscriptMessage], left: int) -> tuple[list[TranscriptMessage], bool]:
    """Return messages truncated to a total length, and whether any were cut."""
    kept = []
    is_cut = False
    for message in messages:
        arguments = None if message.arguments is None else message.arguments[:left]
        left -= len(arguments or "")
        text = None if message.text is None else message.text[:left]
        left -= len(text or "")
        if (text, arguments) != (message.text, message.arguments):
            is_cut = True
            kept.append(msgspec.structs.replace(message, text=text, arguments=arguments))
        else:
            kept.append(message)
    return kept, is_cut
