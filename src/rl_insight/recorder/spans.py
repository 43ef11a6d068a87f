"""Spans: intervals with a name, a position in the trace, and an outcome."""

from __future__ import annotations

import sys
from contextvars import Token
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rl_insight.recorder.context import (
    AlsoAsync,
    SpanLike,
    get_session_id,
    get_span,
    get_step,
    reset_span,
    set_span,
)
from rl_insight.recorder.losses import short_text
from rl_insight.schema.names import DURATION_SEGMENT

if TYPE_CHECKING:
    from rl_insight.recorder.recorder import Recorder


OK, ERROR, CANCELLED, STILL_OPEN = "ok", "error", "cancelled", "open"
_OUTCOMES = (OK, ERROR, CANCELLED)

NoSpanT = TypeVar("NoSpanT", bound="NoSpan")


class Span(AlsoAsync, msgspec.Struct, gc=False, eq=False):
    """A running or finished interval; use it as a context manager.

    The recorder buffers the span itself as soon as it starts. Ending it only sets `end`, so an open span costs the
    training thread nothing, and hung work is visible. `attributes` is never modified in place.

    Spans are invisible to the garbage collector (`gc=False`). Thousands of buffered objects would otherwise make it
    traverse the entire heap again and again: pauses of 15 ms in a small process, far longer in a big one.
    """

    _recorder: Recorder
    name: str
    attributes: dict[str, Any] | None = None
    segment: str = DURATION_SEGMENT
    lane: str | None = None
    _producer: Any = None
    """The `Producer` that made the span; a decorator uses it to make one span per call."""
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
    """Spans of nested entries into the same object that have not exited."""

    def begin(self, parent: SpanLike | None) -> None:
        """Start the span as a child of `parent`, without making it current."""
        recorder = self._recorder
        next_span_id, now = recorder.next_span_id, recorder.now  # `recorder.now()` takes 40 ns longer on Python 3.11
        self.span_id = span_id = next_span_id()
        # Assigning a field costs 20 ns, so fields that keep their defaults are skipped.
        if parent is None:
            self.trace_high = recorder.trace_prefix
            self.trace_low = span_id
        else:
            self.parent_id = parent.span_id
            self.trace_high = parent.trace_high
            self.trace_low = parent.trace_low
            if self.lane is None:
                self.lane = parent.lane
        step = get_step()
        if step is not None or (step := recorder.step) is not None:
            self.step = step
        session_id = get_session_id()
        if session_id is not None:
            self.session_id = session_id
        self.start = now()
        spans = recorder.spans
        spans.append(self)
        if len(spans) > recorder.watermark:
            recorder.relieve(spans, "spans", recorder.max_spans)

    def finish(self, kind: type[BaseException] | None = None) -> None:
        """End the span, as failed or cancelled if an exception type is given. A second end is ignored."""
        if self.end:
            return
        if kind is not None:
            self.fail(kind)
        self.end = self._recorder.now()

    def fail(self, kind: type[BaseException]) -> None:
        """Set the status that an exception implies; an error is never downgraded."""
        status, error = outcome(kind)
        if status == ERROR or (status == CANCELLED and self.status != ERROR):
            self.status, self.error = status, error

    def __enter__(self) -> Span:
        if self.end or self._token is not None:
            return self._enter_again()
        self.begin(get_span())
        self._token = set_span(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if self._again:
            Span.__exit__(self._pop_again(), kind, error, traceback)
            return
        if kind is not None:
            self.finish(kind)
        elif not self.end:
            now = self._recorder.now
            self.end = now()
        token = self._token
        if token is None:  # exited twice
            return
        self._token = None  # the token refers to its context, which refers to this span: breaks the only cycle
        try:  # noqa: SIM105  # `contextlib.suppress` would cost 400 ns
            reset_span(token)
        except ValueError:  # exited in a different context than it was entered in
            pass

    def _enter_again(self) -> Span:
        """Record this entry as a separate span: the previous one may still be buffered."""
        again = self.__class__(self._recorder, self.name, self.attributes, self.segment, self.lane)
        Span.__enter__(again)
        self._again += (again,)
        return again

    def _pop_again(self) -> Span:
        *outer, again = self._again
        self._again = tuple(outer)
        return again

    def set_attribute(self, key: str, value: Any) -> None:
        """Add or replace one attribute of a span that has not ended."""
        if self._again:
            self._again[-1].set_attribute(key, value)
        elif not self.end:
            self.attributes = {**(self.attributes or {}), key: value}

    def set_status(self, status: str, error: str | None = None) -> None:
        """Set the outcome of work that raises no exception: `ok`, `error` or `cancelled`."""
        if status not in _OUTCOMES:
            self._recorder.losses.refuse(
                "spans",
                "bad_status",
                f"status {short_text(status)!r} was refused: choose one of {', '.join(_OUTCOMES)}.",
            )
            return
        span = self._again[-1] if self._again else self
        span.status = status
        span.error = None if error is None else short_text(error)


class NoSpan(AlsoAsync):
    """Returned by span calls while nothing is recorded: accepts every call and does nothing."""

    __slots__ = ()

    def __enter__(self: NoSpanT) -> NoSpanT:  # noqa: PYI019  # typing.Self requires Python 3.11
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        return None

    def ignore(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    begin = finish = set_attribute = set_status = ignore


NO_SPAN = NoSpan()


def outcome(kind: type[BaseException]) -> tuple[str, str | None]:
    """Return the status and the error name of a span that ends with an exception.

    >>> outcome(ZeroDivisionError)
    ('error', 'ZeroDivisionError')
    """
    if issubclass(kind, GeneratorExit):  # the consumer stopped early, which is not a failure
        return OK, None
    asyncio = sys.modules.get("asyncio")
    cancelled = (KeyboardInterrupt, SystemExit, *(() if asyncio is None else (asyncio.CancelledError,)))
    status = CANCELLED if issubclass(kind, cancelled) else ERROR
    return status, kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
