"""The driver's steps in its workers: a worker that sets no step records under the step that the driver was in.

The driver tells when each step began, a worker asks before it hands on what it recorded, and each row gets the step of
its own time. So a step is right to the moment, however seldom a worker asks.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_insight.recorder.recorder import Recorder
    from rl_insight.recorder.sessions import Session
    from rl_insight.recorder.spans import Span

StepMark = tuple[int, int]
"""When a step began, in nanoseconds since 1970, and its number."""
Handler = Callable[[Any], None]

SETTLE_S = 0.2
"""What the driver's flusher needs to tell a step, and Ray to bring it to the hub."""
_BACKLOG = 5_000
"""With more events waiting than this, room in the buffers comes first."""
_METRIC_STEP, _METRIC_READING = 5, 6
_POINT_READING, _POINT_STEP = 1, 6
"""Where steps and times are in the tuples that wait in a recorder's buffers."""


class StepExchange:
    """What the flusher of one process does about the steps of the run; does nothing in most processes.

    Args:
        recorder: Records in this process.
        tell: In a driver, tells when a step began.
        ask: In a worker, returns when the driver's latest steps began, in order; None where nothing is known.
        pause: How to wait.
    """

    def __init__(
        self,
        recorder: Recorder,
        tell: Callable[[StepMark], None] | None = None,
        ask: Callable[[], Sequence[StepMark] | None] | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._recorder = recorder
        self._tell = tell
        self._ask = ask
        self._pause = pause
        self._marks: Sequence[StepMark] = ()
        self._limits: dict[int, int] = {}

    def exchange(self) -> None:
        """Tell the steps that began here, or learn those of the driver; called before the buffers are emptied.

        A worker waits a moment before it asks: what began in the driver before this call is then known to the hub.
        What the worker records meanwhile stays in the buffers until the next time, see `limit`.
        """
        recorder = self._recorder
        self._limits = {}
        if self._tell is not None:
            while recorder.step_marks:
                self._tell(recorder.step_marks.popleft())
        elif self._ask is not None and recorder.step is None and recorder.has_waiting:
            buffers: tuple[deque[Any], ...] = (recorder.metrics, recorder.spans, recorder.points, recorder.sessions)
            self._limits = {id(buffer): len(buffer) for buffer in buffers}
            if sum(self._limits.values()) < _BACKLOG:
                self._pause(SETTLE_S)
            self._marks = self._ask() or self._marks

    def limit(self, buffer: deque[Any]) -> int:
        """Return how many of the events in a buffer may be taken."""
        return self._limits.get(id(buffer), len(buffer)) if self._limits else len(buffer)

    def metrics(self, handle: Handler) -> Handler:
        """Return a handler of metric events that adds the step where there is none."""
        if not self._marks or self._recorder.step is not None:
            return handle

        def with_step(event: Any) -> None:
            if event[_METRIC_STEP] is None:
                step = self._at(event[_METRIC_READING] or self._recorder.now())
                event = (*event[:_METRIC_STEP], step, *event[_METRIC_READING:])
            handle(event)

        return with_step

    def points(self, handle: Handler) -> Handler:
        """Return a handler of events and log lines that adds the step where there is none."""
        if not self._marks or self._recorder.step is not None:
            return handle

        def with_step(point: Any) -> None:
            if point[_POINT_STEP] is None:
                point = (*point[:_POINT_STEP], self._at(point[_POINT_READING]), *point[_POINT_STEP + 1 :])
            handle(point)

        return with_step

    def spans(self, handle: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return a handler of spans or sessions that adds the step where there is none."""
        if not self._marks or self._recorder.step is not None:
            return handle

        def with_step(span: Span | Session) -> None:
            if span.step is None:
                span.step = self._at(span.start)
            handle(span)

        return with_step

    def _at(self, reading: int) -> int | None:
        """Return the step that the driver was in at a reading of this process's clock; None before its first."""
        marks = self._marks
        place = bisect_right(marks, reading + self._recorder.clock.offset_ns, key=lambda mark: mark[0]) - 1
        return marks[place][1] if place >= 0 else None
