"""Selects the sessions whose text is recorded: the first of each step in each process, then failures and extremes.

Used only with `recorder.capture_text`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from rl_insight.recorder.spans import ERROR, Span
from rl_insight.schema.captured_text import CAPTURED_TEXT

_MAX_SESSIONS: Final = 20_000
_MAX_STEPS: Final = 64
_MAX_HELD: Final = 16 * 1024 * 1024
"""Total characters of text held until the outcome of its session."""
_SECONDS_WITHOUT_STEP: Final = 60
"""Sessions without a step are sampled by minute."""
TAKEN, WAITING, LEFT = "taken", "waiting", "left"


class HeldTexts(NamedTuple):
    """The text of a span that was sent without it."""

    span_id: int
    time: int
    texts: dict[str, Any]
    characters: int


class _StepSample(msgspec.Struct, gc=False):
    taken: int = 0
    extra: int = 0
    lowest: float = float("inf")
    highest: float = float("-inf")


class _SessionTexts(msgspec.Struct):
    state: str
    step: int
    size: int = 0
    held: list[HeldTexts] = []


class TextSample:
    """Decides for which sessions of a process text is recorded. Used by the flusher and by training threads.

    Args:
        per_step: How many sessions of each step are taken in order of arrival, and how many more because they failed or
            had the lowest or highest reward so far.
        max_characters: Limit per session; further text is recorded as its length.
    """

    def __init__(self, per_step: int, max_characters: int) -> None:
        self._per_step = per_step
        self._max_characters = max_characters
        self._sessions: OrderedDict[str, _SessionTexts] = OrderedDict()
        self._steps: OrderedDict[int, _StepSample] = OrderedDict()
        self._waiting: OrderedDict[str, _SessionTexts] = OrderedDict()
        """Sessions with held text, oldest first."""
        self._held = 0
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        """Replace the lock: a thread that does not exist in the child may have held it."""
        self._lock = threading.Lock()

    def shows(self, span: Span, session_id: str, step: int | None, start_ns: int) -> bool:
        """Return whether a span is sent with its text; otherwise the text is held until the session's outcome."""
        texts = texts_in(span.attributes or {})
        if self.takes(session_id, step, start_ns) or span.status == ERROR:
            return not span.end or self.has_room(session_id, characters_in(texts))
        if span.end:
            self.hold(session_id, span.span_id, span.end, texts)
        return False

    def takes(self, session_id: str, step: int | None, now_ns: int) -> bool:
        """Return whether a session's text is recorded immediately; the first call decides."""
        with self._lock:
            return self._session(session_id, step, now_ns).state == TAKEN

    def decide(self, session_id: str, *, is_taken: bool) -> None:
        """Adopt the decision of the process that owns a session."""
        with self._lock:
            known = self._sessions.get(session_id)
            if known is None:
                self._remember(session_id, _SessionTexts(TAKEN if is_taken else LEFT, 0))
            elif is_taken:
                known.state = TAKEN

    def has_room(self, session_id: str, characters: int) -> bool:
        """Return whether this many more characters of a session may be recorded, and count them if so."""
        with self._lock:
            known = self._sessions.get(session_id)
            if known is None or known.size + characters > self._max_characters:
                return False
            known.size += characters
            return True

    def hold(self, session_id: str, span_id: int, time: int, texts: Mapping[str, Any]) -> None:
        """Keep text until the outcome of its session is known."""
        characters = characters_in(texts)
        with self._lock:
            known = self._sessions.get(session_id)
            if known is None or known.state != WAITING:
                return
            size = sum(held.characters for held in known.held) + characters
            if size > self._max_characters:
                return
            # Copied, because callers often append to a list of messages.
            own = {key: list(value) if isinstance(value, list) else value for key, value in texts.items()}
            known.held = [*known.held, HeldTexts(span_id, time, own, characters)]
            self._waiting.setdefault(session_id, known)
            self._held += characters
            while self._held > _MAX_HELD:
                self._release(next(iter(self._waiting)))

    def settle(self, session_id: str, step: int | None, now_ns: int, *, failed: bool, reward: Any) -> list[HeldTexts]:
        """Record the outcome of a session; return the held text that is to be recorded after all."""
        with self._lock:
            session = self._session(session_id, step, now_ns)
            of_step = self._step(session.step)
            is_extreme = False
            if isinstance(reward, (int, float)) and reward == reward:  # noqa: PLR0124  # not NaN
                is_extreme = reward < of_step.lowest or reward > of_step.highest
                of_step.lowest, of_step.highest = min(of_step.lowest, reward), max(of_step.highest, reward)
            if session.state != WAITING:
                return []
            held = self._release(session_id)
            if not (failed or is_extreme) or of_step.extra >= self._per_step:
                session.state = LEFT
                return []
            of_step.extra += 1
            session.state = TAKEN
            return held

    def _session(self, session_id: str, step: int | None, now_ns: int) -> _SessionTexts:
        known = self._sessions.get(session_id)
        if known is None:
            number = -1 - now_ns // (_SECONDS_WITHOUT_STEP * 10**9) if step is None else step
            of_step = self._step(number)
            is_taken = of_step.taken < self._per_step
            of_step.taken += is_taken
            known = _SessionTexts(TAKEN if is_taken else WAITING, number)
            self._remember(session_id, known)
        return known

    def _remember(self, session_id: str, session: _SessionTexts) -> None:
        self._sessions[session_id] = session
        if len(self._sessions) > _MAX_SESSIONS:
            forgotten, _ = self._sessions.popitem(last=False)
            self._release(forgotten)

    def _release(self, session_id: str) -> list[HeldTexts]:
        """Remove and return the held text of a session."""
        session = self._waiting.pop(session_id, None)
        if session is None:
            return []
        held, session.held = session.held, []
        self._held -= sum(texts.characters for texts in held)
        return held

    def _step(self, number: int) -> _StepSample:
        known = self._steps.get(number)
        if known is None:
            known = self._steps[number] = _StepSample()
            if len(self._steps) > _MAX_STEPS:
                self._steps.popitem(last=False)
        return known


def texts_in(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that hold conversation text."""
    return {key: value for key, value in attributes.items() if key in CAPTURED_TEXT}


def characters_in(value: Any) -> int:
    """Return the number of characters in a string or a container of strings.

    >>> characters_in({"messages": [{"role": "user", "content": "2 + 2"}]})
    9
    """
    return sum(map(len, _strings(value, 6)))


def _strings(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth and isinstance(value, (dict, list, tuple)):
        for one in list(value.values() if isinstance(value, dict) else value):
            yield from _strings(one, depth - 1)
