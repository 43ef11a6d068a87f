"""Carries the current span, step, session and task to other processes, as W3C trace context and baggage."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any

import msgspec

from rl_insight.recorder.context import ContextScope, current_session_id, current_span, current_step, current_task
from rl_insight.recorder.losses import safe_text
from rl_insight.schema.json_values import whole_number

INHERIT_VARIABLE = "RL_INSIGHT_INHERIT"
"""Set by `init()` for child processes: the JSON they need to join the run."""
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STEP_KEY = "rl_insight.step"
_SESSION_KEY = "rl_insight.session"
_TASK_KEY = "rl_insight.task"
_TEXT_KEY = "rl_insight.text"

_foreign: ContextVar[tuple[str, tuple[str, ...]] | None] = ContextVar("rl_insight_foreign", default=None)
"""tracestate and baggage members of other systems, passed on unchanged."""


class RemoteSpan(msgspec.Struct):
    """The span of another process, read from a carrier."""

    trace_high: int
    trace_low: int
    span_id: int
    lane: str | None = None


def inject(
    carrier: MutableMapping[str, str] | None = None,
    *,
    default_step: int | None = None,
    takes_text: Callable[[str, int | None], bool] | None = None,
) -> MutableMapping[str, str]:
    """Write the current context into a carrier; see `rl_insight.inject`.

    `takes_text` returns whether a session's text is recorded; None if text is never recorded.
    """
    carrier = {} if carrier is None else carrier
    span = current_span.get()
    if span is not None:
        carrier["traceparent"] = f"00-{span.trace_high:016x}{span.trace_low:016x}-{span.span_id:016x}-01"
    tracestate, members = _foreign.get() or ("", ())
    if tracestate:
        carrier["tracestate"] = tracestate
    own = {_STEP_KEY, _SESSION_KEY, _TASK_KEY, _TEXT_KEY}
    present = (member.strip() for member in str(carrier.get("baggage", "")).split(","))
    baggage = list(dict.fromkeys([*(m for m in present if m and m.partition("=")[0].strip() not in own), *members]))
    from urllib.parse import quote  # not at the top: `import rl_insight` does not need it

    step = current_step.get()
    step = default_step if step is None else step
    if step is not None:
        baggage.append(f"{_STEP_KEY}={step}")
    session = current_session_id.get()
    if session is not None:
        baggage.append(f"{_SESSION_KEY}={quote(session, safe='', errors='replace')}")
        if takes_text is not None:
            baggage.append(f"{_TEXT_KEY}={int(takes_text(session, step))}")
    task = current_task.get()
    if task is not None:
        baggage.append(f"{_TASK_KEY}={quote(safe_text(task), safe='', errors='replace')}")
    if baggage:
        carrier["baggage"] = ",".join(baggage)
    return carrier


class Attachment:
    """A remote context that is current until its `with` block, or `detach()`, ends it."""

    __slots__ = ("_scope", "session_id", "takes_text")

    def __init__(self, carrier: Mapping[str, str]) -> None:
        from urllib.parse import unquote

        self.session_id: str | None = None
        self.takes_text: bool | None = None
        """Whether the session's owner records its text; None if the carrier does not say."""
        values: dict[ContextVar[Any], Any] = {}
        headers = _headers(carrier)
        span = parse_traceparent(headers.get("traceparent", ""))
        if span is not None:
            values[current_span] = span
        foreign = []
        for member in filter(None, (part.strip() for part in headers.get("baggage", "").split(","))):
            key, _, value = member.partition("=")
            key, value = key.strip(), unquote(value.partition(";")[0].strip())
            if key == _STEP_KEY and (step := whole_number(value)) is not None:
                values[current_step] = step
            elif key == _SESSION_KEY:
                self.session_id = values[current_session_id] = value
            elif key == _TEXT_KEY:
                self.takes_text = value == "1"
            elif key == _TASK_KEY:
                values[current_task] = value
            else:
                foreign.append(member)
        if foreign or "tracestate" in headers:
            values[_foreign] = (headers.get("tracestate", ""), tuple(foreign))
        self._scope = ContextScope(values, None)
        self._scope.__enter__()

    def detach(self) -> None:
        """Restore the previous context."""
        self._scope.__exit__()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()


def parse_traceparent(header: str) -> RemoteSpan | None:
    """Parse a `traceparent` header; None if it is absent or invalid.

    >>> parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").span_id == 0xB7AD6B7169203331
    True
    """
    match = _TRACEPARENT.fullmatch(header.strip().lower())
    if match is None:
        return None
    version, trace, span, _flags, extra = match.groups()
    if version == "ff" or (version == "00" and extra) or not int(trace, 16) or not int(span, 16):
        return None
    return RemoteSpan(int(trace[:16], 16), int(trace[16:], 16), int(span, 16))


def _headers(carrier: Any) -> dict[str, str]:
    """Return a carrier's entries with lower-case names; empty if it cannot be read."""
    try:
        return {_text(key).lower(): _text(value) for key, value in carrier.items()}
    except Exception:  # noqa: BLE001  # None, a list, or a user's mapping that raises: no reason to stop training
        return {}


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
