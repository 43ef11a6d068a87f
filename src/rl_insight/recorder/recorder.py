"""The recorder: the buffers that training threads append to and the flusher empties."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rl_insight.metrics import kinds
from rl_insight.recorder.clock import Clock
from rl_insight.recorder.context import SpanLike, get_session_id, get_span, get_step
from rl_insight.recorder.ids import IdSource
from rl_insight.recorder.lanes import Lanes
from rl_insight.recorder.losses import Losses
from rl_insight.recorder.sessions import Session
from rl_insight.recorder.spans import Span
from rl_insight.recorder.text_sample import TextSample

if TYPE_CHECKING:
    from rl_insight.config.model import RecorderConfig
    from rl_insight.recorder.step_exchange import StepMark

COUNTER, GAUGE, HISTOGRAM = kinds.COUNTER.name, kinds.GAUGE.name, kinds.HISTOGRAM.name
EVENT, LOG = "event", "log"

PointEvent = tuple[str, int, Any, str, "dict[str, Any]", "SpanLike | None", "int | None", "str | None", str]
"""Kind, monotonic time, level, name or message, attributes, span, step, session, logger."""

_WATERMARK = 2_000
"""Buffered events that wake the flusher early."""
_WATERMARK_STEP = 64
"""Events between checks of a buffer that is filling up: a check costs as much as recording an event."""
_YIELD_EVERY_NS = 800_000
_YIELD_S = 0.000_05
"""Above the watermark, a recording thread that never blocks yields to the flusher this often. The interpreter's switch
interval of 5 ms would be too long to keep up with 50,000 spans per second."""


class _MetricCall(msgspec.Struct, gc=False, eq=False):
    """One call of a metric function, until the flusher folds it into its series.

    Invisible to the garbage collector, like spans: traversing buffered events took half the time of a call. Each kind
    has a class with only the fields it needs: the flusher frees events on another core, from which their memory must be
    fetched again. In a loop of only the call, two fields fewer saved 10%.
    """

    name: str
    value: float
    labels: dict[str, Any]
    documentation: str
    step: int | None


class CounterEvent(_MetricCall, gc=False, eq=False):
    """One call of `metric_count`."""

    kind: ClassVar[str] = COUNTER
    time: ClassVar[int] = 0


class HistogramEvent(_MetricCall, gc=False, eq=False):
    """One call of `metric_histogram`."""

    kind: ClassVar[str] = HISTOGRAM
    time: ClassVar[int] = 0


class GaugeEvent(_MetricCall, gc=False, eq=False):
    """One call of `metric_gauge`, with its monotonic time."""

    kind: ClassVar[str] = GAUGE
    time: int


MetricEvent = CounterEvent | HistogramEvent | GaugeEvent


class Recorder:
    """The buffers of one process.

    Appending to a deque is atomic in CPython and needs no lock. All expensive work (label conversion, aggregation,
    redaction, encoding) happens in the flusher's thread.
    """

    def __init__(
        self, config: RecorderConfig | None = None, *, clock: Clock | None = None, ids: IdSource | None = None
    ) -> None:
        if config is None:
            from rl_insight.config.model import RecorderConfig

            config = RecorderConfig()
        ids = ids or IdSource()
        self.clock = clock or Clock()
        self.now = self.clock.now
        self.next_span_id = ids.next_span_id
        self.trace_prefix = ids.trace_prefix
        self.metrics: deque[MetricEvent] = deque()
        self.spans: deque[Span] = deque()
        self.points: deque[PointEvent] = deque()
        self.sessions: deque[Session] = deque()
        self.step: int | None = None
        self.step_marks: deque[StepMark] | None = None
        """Start times of steps, for processes that follow this one's steps; None if none do."""
        self._last_marked: int | None = None
        self.lanes = Lanes()
        self.losses = Losses()
        self.wake = threading.Event()
        self._next_yield = 0
        self.apply(config)

    def apply(self, config: RecorderConfig) -> None:
        """Apply the limits of a configuration."""
        self.max_metrics = config.max_metrics
        self.max_spans = config.max_spans
        self.max_records = config.max_records
        self.drop_oldest = config.drop == "oldest"
        self.texts = (
            TextSample(config.transcripts_per_step, config.max_transcript_characters) if config.capture_text else None
        )
        self._highest_watermark = min(config.max_metrics, config.max_spans, config.max_records)
        self._usual_watermark = min(_WATERMARK, self._highest_watermark)
        self.watermark = self._usual_watermark

    def expect_first_event(self) -> None:
        """Wake the flusher at the first event; later events cost nothing extra."""
        self.watermark = 0

    def take_first_event(self) -> bool:
        """Return whether the first event has been recorded since `expect_first_event`; True once."""
        if self.watermark or not self.has_waiting:
            return False
        self.watermark = self._usual_watermark
        return True

    def lower_watermark(self) -> None:
        """Restore the usual watermark after the flusher has emptied the buffers."""
        if self.watermark:
            self.watermark = self._usual_watermark

    @property
    def has_waiting(self) -> bool:
        """Whether any event is buffered."""
        return bool(self.metrics or self.spans or self.points or self.sessions)

    def mark_step(self, step: int) -> None:
        """Mark the start of a step for the processes that follow this one's steps; the flusher sends it."""
        marks = self.step_marks
        if marks is None:
            return
        self._last_marked = step
        marks.append((self.clock.wall_ns(self.now()), step))
        self.wake.set()

    def mark_scope(self, step: int) -> None:
        """Do the same for a `with` block, unless it logs values of an earlier step."""
        if self._last_marked is None or step > self._last_marked:
            self.mark_step(step)

    def after_fork(self) -> None:
        """Make the parent's recorder safe to use in a child: blocks that were open at the fork still end there."""
        self.lanes.after_fork()
        self.losses.after_fork()
        if self.texts is not None:
            self.texts.after_fork()
        self.wake = threading.Event()

    def takes_text(self, session_id: str, step: int | None) -> bool:
        """Return whether a session's text is recorded, for callers that would have to build it first."""
        return self.texts is not None and self.texts.takes(session_id, step, self.clock.wall_ns(self.now()))

    def relieve(self, buffer: deque[Any], kind: str, limit: int) -> None:
        """Wake the flusher because a buffer is filling up; above its limit, drop and count one event."""
        if not self.wake.is_set():
            self.wake.set()
        if self.watermark:  # 0 until the flusher has seen the first event
            self.watermark = min(len(buffer) + _WATERMARK_STEP, self._highest_watermark)
        if self.now() >= self._next_yield:
            time.sleep(_YIELD_S)
            self._next_yield = self.now() + _YIELD_EVERY_NS
        if len(buffer) <= limit:
            return
        try:
            if self.drop_oldest:
                buffer.popleft()
            else:
                buffer.pop()
        except IndexError:  # the flusher has just emptied it
            return
        self.losses.count(kind, "buffer_full")

    def record_point(self, kind: str, level: int, text: str, attributes: dict[str, Any], logger: str = "") -> None:
        """Record an event or a log line now, in the current context."""
        points = self.points
        step = get_step()
        points.append(
            (
                kind,
                self.now(),
                level,
                text,
                attributes,
                get_span(),
                self.step if step is None else step,
                get_session_id(),
                logger,
            )
        )
        if len(points) > self.watermark:
            self.relieve(points, "logs" if kind == LOG else "events", self.max_records)
