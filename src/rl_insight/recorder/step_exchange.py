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

StepMark = tuple[int, int]
"""When a step began, in nanoseconds since 1970, and its number."""
AddSteps = Callable[[list[Any]], list[Any]]

SETTLE_S = 0.2
"""What the driver's flusher needs to tell a step, and Ray to bring it to the hub."""
_BACKLOG = 5_000
"""With more events waiting than this, room in the buffers comes first."""
_POINT_READING, _POINT_STEP = 1, 6
"""Where steps and times are in the tuples of events and log lines."""


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
        Events recorded in the meantime stay in the buffers until the next call, see `limit`.
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

    @property
    def _is_idle(self) -> bool:
        return not self._marks or self._recorder.step is not None

    def add_to_metrics(self, events: list[Any]) -> list[Any]:
        """Set the step of metric events that have none."""
        if not self._is_idle:
            for event in events:
                if event.step is None:
                    event.step = self._at(event.time or self._recorder.now())
        return events

    def add_to_points(self, points: list[Any]) -> list[Any]:
        """Return events and log lines, with a step for those that have none."""
        if self._is_idle:
            return points
        return [
            (*point[:_POINT_STEP], self._at(point[_POINT_READING]), *point[_POINT_STEP + 1 :])
            if point[_POINT_STEP] is None
            else point
            for point in points
        ]

    def add_to_spans(self, spans: list[Any]) -> list[Any]:
        """Set the step of spans or sessions that have none."""
        if not self._is_idle:
            for span in spans:
                if span.step is None:
                    span.step = self._at(span.start)
        return spans

    def _at(self, reading: int) -> int | None:
        """Return the step that the driver was in at a reading of this process's clock; None before its first."""
        marks = self._marks
        place = bisect_right(marks, reading + self._recorder.clock.offset_ns, key=lambda mark: mark[0]) - 1
        return marks[place][1] if place >= 0 else None
