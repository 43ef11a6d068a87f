"""Spans: intervals with a name, a place in the tree, and an outcome."""

from __future__ import annotations

import sys
from contextvars import Token
from typing import TYPE_CHECKING, Any

import msgspec

from rl_insight.recorder.context import SpanLike, current_session_id, current_span, current_step
from rl_insight.recorder.losses import short_text

if TYPE_CHECKING:
    from rl_insight.recorder.recorder import Recorder

DURATION = "duration"
STATE_INTERVAL = "state_interval"
STATE_NESTED = "state_nested"

OK, ERROR, CANCELLED, STILL_OPEN = "ok", "error", "cancelled", "open"
_OUTCOMES = (OK, ERROR, CANCELLED)


class Span(msgspec.Struct, gc=False, eq=False):
    """A running or finished interval; use it as a context manager.

    The span itself is what waits in the recorder's buffer, from its start on: ending it only sets `end`, so an open
    span costs the training thread nothing more, and hung work is visible. `attributes` is never changed in place.

    The garbage collector does not see spans (`gc=False`). Thousands that wait would make it walk the whole heap of the
    training process again and again: pauses of 15 ms in a small process, far longer in a big one.
    """

    _recorder: Recorder
    name: str
    attributes: dict[str, Any] | None = None
    segment: str = DURATION
    lane: str | None = None
    start: int = 0
    end: int = 0
    span_id: int = 0
    parent_id: int = 0
    trace_high: int = 0
    trace_low: int = 0
    step: int | None = None
    session_id: str | None = None
    status: str = OK
    error: str | None = None
    _token: Token[SpanLike | None] | None = None
    _again: tuple[Span, ...] = ()
    """What was recorded when the same object was entered once more, until it is left."""

    def begin(self, parent: SpanLike | None) -> None:
        """Start the span below a parent, without making it current."""
        recorder = self._recorder
        self.span_id = span_id = recorder.next_span_id()
        # Setting a field costs 20 ns: those that have their default already are left alone.
        if parent is None:
            self.trace_high = recorder.trace_prefix
            self.trace_low = span_id
        else:
            self.parent_id = parent.span_id
            self.trace_high = parent.trace_high
            self.trace_low = parent.trace_low
            if self.lane is None:
                self.lane = parent.lane
        step = current_step.get()
        if step is not None or (step := recorder.step) is not None:
            self.step = step
        session_id = current_session_id.get()
        if session_id is not None:
            self.session_id = session_id
        self.start = recorder.now()
        spans = recorder.spans
        spans.append(self)
        if len(spans) > recorder.watermark:
            recorder.relieve(spans, "spans", recorder.max_spans)

    def finish(self, kind: type[BaseException] | None = None) -> None:
        """End the span; an exception's type makes it failed or cancelled. A second end is ignored."""
        if self.end:
            return
        if kind is not None:
            self.fail(kind)
        self.end = self._recorder.now()

    def fail(self, kind: type[BaseException]) -> None:
        """Take over the outcome that an exception means; what failed already stays failed."""
        status, error = outcome(kind)
        if status == ERROR or (status == CANCELLED and self.status != ERROR):
            self.status, self.error = status, error

    def __enter__(self) -> Span:
        if self.end or self._token is not None:
            return self._enter_again()
        self.begin(current_span.get())
        self._token = current_span.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if self._again:
            *outer, again = self._again
            self._again = tuple(outer)
            Span.__exit__(again, kind, error, traceback)
            return
        if kind is not None:
            self.finish(kind)
        elif not self.end:
            self.end = self._recorder.now()
        token = self._token
        if token is None:  # left twice
            return
        self._token = None  # a token leads to its context and back to this span: the one cycle there is
        try:  # noqa: SIM105  # `contextlib.suppress` would cost 400 ns
            current_span.reset(token)
        except ValueError:  # left in another context than it was entered: nothing to reset
            pass

    def _enter_again(self) -> Span:
        """Record the work as a separate span: what this object recorded may still wait in the buffer."""
        again = self.__class__(self._recorder, self.name, self.attributes, self.segment, self.lane)
        Span.__enter__(again)
        self._again += (again,)
        return again

    async def __aenter__(self) -> Span:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self.__exit__(kind, error, traceback)

    def set_attribute(self, key: str, value: Any) -> None:
        """Add or replace one attribute of a span that has not ended."""
        if self._again:
            self._again[-1].set_attribute(key, value)
        elif not self.end:
            self.attributes = {**(self.attributes or {}), key: value}

    def set_status(self, status: str, error: str | None = None) -> None:
        """Say how the work went where no exception tells: `ok`, `error` or `cancelled`."""
        if status not in _OUTCOMES:
            self._recorder.losses.refuse(
                "spans", "bad_status", f"status {short_text(status)!r} was refused: a span ends {', '.join(_OUTCOMES)}."
            )
            return
        span = self._again[-1] if self._again else self
        span.status = status
        span.error = None if error is None else short_text(error)


class NoSpan:
    """What span calls return while nothing is recorded: takes every call, does nothing."""

    __slots__ = ()

    def __enter__(self) -> NoSpan:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        return None

    async def __aenter__(self) -> NoSpan:
        return self

    async def __aexit__(self, *_outcome: object) -> None:
        return None

    def begin(self, parent: SpanLike | None) -> None:
        """Do nothing."""

    def finish(self, kind: type[BaseException] | None = None) -> None:
        """Do nothing."""

    def set_attribute(self, key: str, value: Any) -> None:
        """Do nothing."""

    def set_status(self, status: str, error: str | None = None) -> None:
        """Do nothing."""


NO_SPAN = NoSpan()


def outcome(kind: type[BaseException]) -> tuple[str, str | None]:
    """Return the status and the error name that an exception gives to the span it leaves.

    >>> outcome(ZeroDivisionError)
    ('error', 'ZeroDivisionError')
    """
    if issubclass(kind, GeneratorExit):  # a consumer that stopped early is not a failure
        return OK, None
    asyncio = sys.modules.get("asyncio")
    cancelled = (
        (KeyboardInterrupt, SystemExit)
        if asyncio is None
        else (
            KeyboardInterrupt,
            SystemExit,
            asyncio.CancelledError,
        )
    )
    status = CANCELLED if issubclass(kind, cancelled) else ERROR
    return status, kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
