"""A session as a conversation: messages and tool calls in order, from the text in its spans.

Inputs are placed at the start of a span, outputs at its end. A turn usually gets the entire conversation so far as its
input; only the new messages are added.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any, Final

import msgspec

from rl_insight.schema.captured_text import (
    ARGUMENT_KEYS,
    CAPTURED_TEXT,
    FULL_LENGTH,
    INPUT_KEYS,
    LEFT_OUT,
    OUTPUT_KEYS,
    RESULT_KEYS,
    SYSTEM_KEYS,
    hidden_length,
)
from rl_insight.schema.json_values import whole_number

SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"
_TOOL_NAMES: Final = ("tool", "tool_name", "gen_ai.tool.name")
_TOKENS: Final = (
    "tokens", "output_tokens", "completion_tokens", "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens",
)  # fmt: skip
_EVENT_ROLES: Final = {
    "gen_ai.system.message": SYSTEM,
    "gen_ai.user.message": USER,
    "gen_ai.assistant.message": ASSISTANT,
    "gen_ai.tool.message": TOOL,
    "gen_ai.choice": ASSISTANT,
}
"""Events with one message each, as in OpenTelemetry's semantic conventions before 1.37."""
_NUMBERED = re.compile(
    r"(gen_ai\.prompt|gen_ai\.completion|llm\.input_messages|llm\.output_messages)\.(\d{1,4})\.(?:message\.)?(\w+)"
)
"""One attribute per part of a message, as written by OpenLLMetry and OpenInference."""


class TranscriptMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message or tool call; times are seconds since 1970."""

    role: str
    """`system`, `user`, `assistant`, `tool`, or as recorded."""
    at_ts: float
    text: str | None = None
    """The message, or a tool's result; None if it was not recorded."""
    characters: int = 0
    """The length of the full text: more than that of `text` if it was truncated."""
    tool: str | None = None
    """The name of the tool that was called."""
    arguments: str | None = None
    """The tool's arguments."""
    arguments_characters: int = 0
    tokens: int | None = None
    duration_s: float | None = None
    outcome: str | None = None
    """Of the span: `ok`, `error`, `cancelled` or `open`."""
    span_id: str | None = None
    left_out: int = 0
    """Number of earlier messages left out because the conversation was too long."""


class TextSource(msgspec.Struct, kw_only=True, eq=False):
    """A span or event that may contain text; times are seconds since 1970."""

    name: str
    start_ts: float
    end_ts: float | None = None
    """None while it is open."""
    outcome: str | None = None
    attributes: dict[str, Any]
    span_id: str | None = None
    is_session: bool = False
    is_event: bool = False


class _ParsedMessage(msgspec.Struct):
    """A message from an attribute."""

    role: str
    text: str | None = None
    characters: int = 0
    tool: str | None = None
    arguments: str | None = None
    arguments_characters: int = 0


def transcript(sources: Iterable[TextSource]) -> list[TranscriptMessage]:
    """Return the conversation in the spans and events of a session.

    >>> turn = TextSource(name="generate", start_ts=1.0, end_ts=3.0, attributes={"prompt": "2 + 2?", "response": "4"})
    >>> [(message.role, message.text, message.duration_s) for message in transcript([turn])]
    [('user', '2 + 2?', None), ('assistant', '4', 2.0)]
    """
    conversation = _Conversation()
    running: list[TextSource] = []
    for source in sorted(sources, key=lambda one: (not one.is_session, one.start_ts)):
        running = _answer(conversation, running, source.start_ts)
        conversation.ask(source)
        if not source.is_event:
            running.append(source)
    _answer(conversation, running, inf)
    return conversation.messages


def _answer(conversation: _Conversation, running: list[TextSource], now_ts: float) -> list[TextSource]:
    """Add the outputs of the sources that have ended by now; return the others. A session ends last."""
    ended = [one for one in running if _end(one) <= now_ts and not (one.is_session and now_ts < inf)]
    for source in sorted(ended, key=lambda one: (one.is_session, _end(one))):
        conversation.answer(source)
    return [one for one in running if one not in ended] if ended else running


def _end(source: TextSource) -> float:
    return inf if source.end_ts is None else source.end_ts


class _Conversation:
    """The conversation so far."""

    def __init__(self) -> None:
        self.messages: list[TranscriptMessage] = []
        self._known: Counter[tuple[str, str | None]] = Counter()
        self._prompt = self._response = ""
        """The latest input and output text."""

    def ask(self, source: TextSource) -> None:
        at_ts, attributes = source.start_ts, source.attributes
        if source.is_event:
            self._add_event(source, at_ts)
            return
        asked: list[_ParsedMessage] = []
        left_out = 0
        for key in (*SYSTEM_KEYS, *INPUT_KEYS):
            if key in attributes:
                asked += _messages(attributes, key, SYSTEM if key in SYSTEM_KEYS else USER)
                left_out += _count(attributes.get(f"{key}{LEFT_OUT}"))
        asked += _numbered(attributes, {"gen_ai.prompt", "llm.input_messages"}, USER)
        self._add_new(asked, source, at_ts, left_out)
        arguments = next((key for key in ARGUMENT_KEYS if key in attributes), None)
        result = next((key for key in RESULT_KEYS if key in attributes), None)
        if arguments is not None or result is not None:
            self._add_call(source, at_ts, arguments, result)

    def answer(self, source: TextSource) -> None:
        at_ts = source.start_ts if source.end_ts is None else source.end_ts
        parsed: list[_ParsedMessage] = []
        for key in OUTPUT_KEYS:
            if key in source.attributes:
                parsed += _messages(source.attributes, key, ASSISTANT)
        parsed += _numbered(source.attributes, {"gen_ai.completion", "llm.output_messages"}, ASSISTANT)
        if source.is_session:  # its phases may have added these already
            self._add_new(parsed, source, at_ts, 0)
            return
        for number, one in enumerate(parsed):
            self._add(one, source, at_ts, is_turn=number == 0)

    def _add_event(self, source: TextSource, at_ts: float) -> None:
        attributes = source.attributes
        role = _EVENT_ROLES.get(source.name)
        if role is not None:
            value = _read(attributes.get("body", attributes))
            if isinstance(value, dict) and "message" in value:
                value = _read(value["message"])
            self._add_new(list(_parse(value, role)), source, at_ts, 0)
            return
        for key in (*SYSTEM_KEYS, *INPUT_KEYS, *OUTPUT_KEYS):
            if key in attributes:
                role = SYSTEM if key in SYSTEM_KEYS else USER if key in INPUT_KEYS else ASSISTANT
                self._add_new(_messages(attributes, key, role), source, at_ts, 0)

    def _add_new(self, parsed: list[_ParsedMessage], source: TextSource, at_ts: float, left_out: int) -> None:
        """Add the new messages of a conversation that repeats earlier ones."""
        seen: Counter[tuple[str, str | None]] = Counter()
        for number, one in enumerate(parsed):
            mark = (one.role, one.text)
            seen[mark] += 1
            if one.text is not None and one.tool is None and seen[mark] <= self._known[mark]:
                continue
            if len(parsed) == 1 and one.role == USER and one.text is not None:
                self._continue(one)
                if not one.text:
                    continue
            self._add(one, source, at_ts, left_out=left_out if number == 0 else 0, is_turn=one.role == ASSISTANT)

    def _continue(self, one: _ParsedMessage) -> None:
        """Remove the known part from a prompt that repeats the conversation as one string."""
        prompt = one.text or ""
        if self._prompt and prompt.startswith(self._prompt):
            rest = prompt[len(self._prompt) :].removeprefix(self._response)
            one.characters -= len(prompt) - len(rest)
            one.text = rest.strip()
        self._prompt, self._response = prompt, ""

    def _add_call(self, source: TextSource, at_ts: float, arguments: str | None, result: str | None) -> None:
        attributes = source.attributes
        call = _ParsedMessage(
            TOOL, tool=next((str(attributes[key]) for key in _TOOL_NAMES if key in attributes), source.name)
        )
        if arguments is not None:
            call.arguments, call.arguments_characters = _text(attributes, arguments)
        if result is not None:
            call.text, call.characters = _text(attributes, result)
        self._add(call, source, at_ts, is_turn=True)

    def _add(
        self, one: _ParsedMessage, source: TextSource, at_ts: float, *, left_out: int = 0, is_turn: bool = False
    ) -> None:
        self._known[one.role, one.text] += 1
        if one.role == ASSISTANT and one.text is not None:
            self._response = one.text
        has_end = is_turn and source.end_ts is not None and not source.is_session
        self.messages.append(
            TranscriptMessage(
                role=one.role,
                at_ts=at_ts,
                text=one.text,
                characters=max(one.characters, len(one.text or "")),
                tool=one.tool,
                arguments=one.arguments,
                arguments_characters=max(one.arguments_characters, len(one.arguments or "")),
                tokens=_tokens(source.attributes) if is_turn and one.role == ASSISTANT else None,
                duration_s=round(max(0.0, (source.end_ts or 0.0) - source.start_ts), 6) if has_end else None,
                outcome=source.outcome if is_turn else None,
                span_id=source.span_id,
                left_out=left_out,
            )
        )


def carries_text(attributes: Mapping[str, Any]) -> bool:
    """Return whether attributes contain conversation text, or its length."""
    return not CAPTURED_TEXT.isdisjoint(attributes) or any(map(_NUMBERED.fullmatch, attributes))


def is_message_event(name: str) -> bool:
    """Return whether events with this name are always messages."""
    return name in _EVENT_ROLES


def _messages(attributes: Mapping[str, Any], key: str, role: str) -> list[_ParsedMessage]:
    value = attributes[key]
    if isinstance(value, str) and key.startswith("gen_ai."):  # OpenTelemetry sends structures as JSON strings
        value = _read(value)
    found = list(_parse(value, role))
    if isinstance(value, str) and found:
        found[0].characters = _count(attributes.get(f"{key}{FULL_LENGTH}")) or found[0].characters
    return found


def _parse(value: Any, role: str) -> Iterator[_ParsedMessage]:
    """Yield the messages in a value: a string, a message of any common shape, or a list of them."""
    if isinstance(value, list):
        for one in value:
            yield from _parse(one, role)
    elif isinstance(value, dict):
        yield from _parse_message(value, role)
    elif value is not None:
        text, characters = _shown(value)
        yield _ParsedMessage(role, text, characters)


def _parse_message(message: dict[str, Any], usual: str) -> Iterator[_ParsedMessage]:
    role = str(message.get("role", usual))
    kind = message.get("type")
    if kind in {"tool_call", "function"} and ("name" in message or "function" in message):
        yield _call(message, role)
        return
    if kind in {"tool_call_response", "tool_result"}:
        text, characters = _shown(message.get("response", message.get("result", message.get("content"))))
        yield _ParsedMessage(TOOL, text, characters, tool=_optional_text(message.get("name")))
        return
    parts = message.get("parts", message.get("content", message.get("text")))
    if isinstance(parts, list):
        yield from _joined([one for part in parts for one in _part(part, role)])
    elif parts is not None:
        text, characters = _shown(parts)
        if text or text is None:
            name = _optional_text(message.get("name")) if role == TOOL else None
            yield _ParsedMessage(role, text, _count(message.get(f"content{FULL_LENGTH}")) or characters, tool=name)
    elif kind is not None and "tool_calls" not in message:
        yield _ParsedMessage(role, f"[{kind}]")
    for call in message.get("tool_calls") or ():
        if isinstance(call, dict):
            yield _call(call, role)


def _part(part: Any, role: str) -> Iterator[_ParsedMessage]:
    if isinstance(part, dict) and part.get("type", "text") in {"text", "reasoning"}:
        text, characters = _shown(part.get("content", part.get("text")))
        yield _ParsedMessage(role, text, characters)
    else:
        yield from _parse(part, role)


def _joined(parsed: list[_ParsedMessage]) -> Iterator[_ParsedMessage]:
    """Yield messages, with consecutive text joined."""
    last: _ParsedMessage | None = None
    for one in parsed:
        if last is not None and last.tool is None and one.tool is None and last.text and one.text:
            last.text = f"{last.text}\n{one.text}"
            last.characters += one.characters + 1
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


def _call(call: dict[str, Any], role: str) -> _ParsedMessage:
    function = call.get("function")
    named = function if isinstance(function, dict) else call
    arguments, characters = _shown(named.get("arguments"))
    name = _optional_text(named.get("name")) or "tool"
    return _ParsedMessage(role, "", tool=name, arguments=arguments, arguments_characters=characters)


def _numbered(attributes: Mapping[str, Any], prefixes: set[str], role: str) -> list[_ParsedMessage]:
    messages: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        found = _NUMBERED.fullmatch(key)
        if found is not None and found[1] in prefixes:
            messages.setdefault(int(found[2]), {})[found[3]] = value
    return [one for number in sorted(messages) for one in _parse(messages[number], role)]


def _text(attributes: Mapping[str, Any], key: str) -> tuple[str | None, int]:
    text, characters = _shown(attributes[key])
    return text, _count(attributes.get(f"{key}{FULL_LENGTH}")) or characters


def _shown(value: Any) -> tuple[str | None, int]:
    """Return a value as text, and its length; no text if only the length was recorded."""
    if value is None:
        return None, 0
    hidden = hidden_length(value)
    if hidden is not None:
        return None, hidden
    text = value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value)).decode()
    return text, len(text)


def _read(value: Any) -> Any:
    """Parse text that contains a JSON structure; return other text unchanged."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value


def _tokens(attributes: Mapping[str, Any]) -> int | None:
    return next((_count(attributes[key]) or None for key in _TOKENS if key in attributes), None)


def _count(value: Any) -> int:
    return max(whole_number(value) or 0, 0)


def _optional_text(value: Any) -> str | None:
    return None if value is None else str(value)
