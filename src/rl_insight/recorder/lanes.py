"""Lanes: one state at a time, as a person would draw it."""

from __future__ import annotations

import threading
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rl_insight.recorder.context import SpanLike, current_span, reset
from rl_insight.recorder.spans import STATE_INTERVAL, STATE_NESTED, Span, outcome

if TYPE_CHECKING:
    from rl_insight.recorder.recorder import Recorder


class _Interval:
    """A state that runs on a lane, and how many entries hold it open."""

    __slots__ = ("entries", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.entries = 1


class Lanes:
    """The states that run now on each lane of this process.

    Entries of the same name share one interval. A different name on a busy lane becomes a child of the running state.
    The lock is held for a few dictionary operations, never across I/O.
    """

    __slots__ = ("_intervals", "_lock", "_running")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._intervals: dict[tuple[str | None, str], _Interval] = {}
        self._running: dict[str | None, _Interval] = {}

    def enter(self, recorder: Recorder, lane: str | None, name: str, labels: dict[str, Any]) -> Span:
        """Open a state on a lane, or join it if it runs already."""
        with self._lock:
            interval = self._intervals.get((lane, name))
            if interval is not None:
                interval.entries += 1
                return interval.span
            running = self._running.get(lane)
            segment = STATE_INTERVAL if running is None else STATE_NESTED
            span = Span(recorder, name, labels, segment, lane)
            span.begin(current_span.get() if running is None else running.span)
            interval = self._intervals[lane, name] = _Interval(span)
            if running is None:
                self._running[lane] = interval
            return span

    def leave(self, lane: str | None, name: str, span: Span, kind: type[BaseException] | None) -> None:
        """Close one entry; the interval ends with its last one and fails if any of its entries failed."""
        with self._lock:
            interval = self._intervals.get((lane, name))
            if interval is None or interval.span is not span:
                return
            interval.entries -= 1
            if kind is not None:
                span.set_status(*outcome(kind))
            if interval.entries:
                return
            del self._intervals[lane, name]
            if self._running.get(lane) is interval:
                del self._running[lane]
            span.finish()


class State:
    """One entry into a state, as a context manager."""

    __slots__ = ("_labels", "_lane", "_name", "_recorder", "_span", "_token")

    def __init__(self, recorder: Recorder, name: str, lane: str | None, labels: dict[str, Any]) -> None:
        self._recorder = recorder
        self._name = name
        self._lane = lane
        self._labels = labels
        self._token: Token[SpanLike | None] | None = None

    def __enter__(self) -> Span:
        self._span = self._recorder.lanes.enter(self._recorder, self._lane, self._name, self._labels)
        self._token = current_span.set(self._span)
        return self._span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._recorder.lanes.leave(self._lane, self._name, self._span, kind)
        if self._token is not None:
            reset(current_span, self._token)

    async def __aenter__(self) -> Span:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)
