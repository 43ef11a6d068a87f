"""Applies the driver's steps to its workers: a worker that sets no step records under the driver's step.

The driver publishes when each step began. A worker fetches these times before it sends recorded events, and each row
gets the step at its own timestamp, so steps are exact no matter how rarely a worker fetches them.
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
"""Time for the driver's flusher to publish a step and for Ray to deliver it to the hub."""
_BACKLOG = 5_000
"""With more buffered events than this, draining the buffers takes priority."""
_POINT_READING, _POINT_STEP = 1, 6
"""Positions of times and steps in the tuples of events and log lines."""


class StepExchange:
    """Publishes or fetches steps for the flusher of one process; does nothing in most processes.

    Args:
        recorder: The recorder of this process.
        publish: In a driver, publishes when a step began.
        fetch: In a worker, returns when the driver's latest steps began, in order; None if unknown.
        pause: Function to sleep with.
    """

    def __init__(
        self,
        recorder: Recorder,
        publish: Callable[[StepMark], None] | None = None,
        fetch: Callable[[], Sequence[StepMark] | None] | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._recorder = recorder
        self._publish = publish
        self._fetch = fetch
        self._pause = pause
        self._marks: Sequence[StepMark] = ()
        self._limits: dict[int, int] = {}

    def exchange(self) -> None:
        """Publish the steps that began here, or fetch those of the driver; called before the buffers are emptied.

        A worker waits briefly before fetching, so that the hub knows all steps that began before this call. Events
        recorded in the meantime stay in the buffers until the next call, see `limit`.
        """
        recorder = self._recorder
        self._limits = {}
        if self._publish is not None:
            while recorder.step_marks:
                self._publish(recorder.step_marks.popleft())
        elif self._fetch is not None and recorder.step is None and recorder.has_waiting:
            buffers: tuple[deque[Any], ...] = (recorder.metrics, recorder.spans, recorder.points, recorder.sessions)
            self._limits = {id(buffer): len(buffer) for buffer in buffers}
            if sum(self._limits.values()) < _BACKLOG:
                self._pause(SETTLE_S)
            self._marks = self._fetch() or self._marks

    def limit(self, buffer: deque[Any]) -> int:
        """Return how many events of a buffer may be taken."""
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
        """Return the driver's step at a time of this process's monotonic clock; None before its first step."""
        marks = self._marks
        place = bisect_right(marks, reading + self._recorder.clock.offset_ns, key=lambda mark: mark[0]) - 1
        return marks[place][1] if place >= 0 else None
