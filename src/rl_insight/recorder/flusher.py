"""The flusher: a thread that empties the recorder's buffers, encodes batches and passes them to the transport."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice, repeat, starmap
from typing import Any

from rl_insight.backoff import Backoff
from rl_insight.config.model import InsightConfig
from rl_insight.recorder.attributes import AttributeEncoder
from rl_insight.recorder.losses import Losses, short_text
from rl_insight.recorder.metrics import MetricTable
from rl_insight.recorder.pace import FlushPace
from rl_insight.recorder.recorder import MetricEvent, Recorder
from rl_insight.recorder.redaction import Redactor
from rl_insight.recorder.rows import RowWriter
from rl_insight.recorder.spans import Span
from rl_insight.recorder.stacks import StackAnswers
from rl_insight.recorder.step_exchange import AddSteps, StepExchange
from rl_insight.recorder.text_sample import TextSample
from rl_insight.schema import Batch, BatchBuilder, Process, encode

logger = logging.getLogger("rl_insight")

_CHUNK = 128
"""Events processed together, between two clock reads."""
_HOLD_NS = 300_000
"""How long to hold the GIL at a time. A training thread that never releases it is forced to every 5 ms (the switch
interval of the interpreter) and then waits this long."""
_BACKLOG = 10_000
_BACKLOG_HOLD_NS = 600_000
"""With a larger backlog, hold it longer: otherwise 50,000 spans per second would pile up."""
_REST_S = 0.000_2
_SPANS_PER_BATCH = 3_000
_VALUES_PER_BATCH = 21_000
"""Not counting spans, which are packed on arrival: 5,000 gauges. The C calls that build the columns of a batch take
less than a millisecond. Smaller batches mean more spool writes, each of which releases and reacquires the GIL."""
_FIRST_FLUSH_S = 0.05
"""The delay after the first event: a worker may exit within a flush interval."""

_DEFECT = "internal error while flushing: the batch being encoded is lost. Please report this."
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
"""The pause after failures that repeat at every flush; the buffers are bounded."""

SendFunction = Callable[[bytes], None]
BatchListener = Callable[[Batch], None]
"""Called with each batch before it is sent, in the flusher's thread; must return quickly."""


class OpenSpans:
    """Spans that have not ended; each that stays open for longer than a flush interval is reported once."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._reported: set[int] = set()

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, span: Span) -> None:
        """Keep a span that has not ended."""
        self._spans.append(span)

    def has_unreported(self, oldest: int) -> bool:
        """Return whether an open span that began before `oldest` has not been reported."""
        known = self._reported
        return any(not span.end and span.start <= oldest and span.span_id not in known for span in self._spans)

    def take(self, oldest: int) -> Iterator[Span | None]:
        """Yield the spans to write: those that have ended, and unreported ones that began before `oldest`.

        Yields None for each remaining span.
        """
        spans, self._spans = self._spans, []
        for span in spans:
            if span.end:
                self._reported.discard(span.span_id)
                yield span
                continue
            self._spans.append(span)
            if span.start <= oldest and span.span_id not in self._reported:
                self._reported.add(span.span_id)
                yield span
            else:
                yield None


class Flusher:
    """Turns a recorder's buffers into batches.

    All methods but `stop`, `note_loss` and `resend_metrics` run in the flusher's thread, or in a test's single thread.
    """

    def __init__(
        self, recorder: Recorder, process: Process, config: InsightConfig, send: SendFunction, max_batch_bytes: int
    ) -> None:
        self.recorder = recorder
        self.process = process
        self._config = config.recorder
        self._send = send
        self._max_batch_bytes = max_batch_bytes
        self._sequence = 0
        self._builder = BatchBuilder()
        self._open = OpenSpans()
        losses = recorder.losses
        redactor = Redactor(config.redaction, on_failure=lambda: _redaction_failed(losses))
        attributes = AttributeEncoder(redactor, losses, config.recorder)
        self._rows = RowWriter(recorder, attributes, redactor)
        self._metrics = MetricTable(
            attributes,
            losses,
            max_series=config.recorder.max_series_per_metric,
            run_labels={
                "project": process.project,
                "experiment_name": process.experiment_name,
                "run_id": process.run_id,
            },
        )
        self._resend_metrics = False
        self.steps = StepExchange(recorder)
        self.pace = FlushPace(config.recorder)
        self._is_failing = False
        self.stacks = StackAnswers()
        self._sent_losses: list[Any] = []
        self._listeners: list[BatchListener] = []
        self._last_sent = 0
        self._held_since = 0
        self._stop = threading.Event()
        self._flushed = threading.Condition()
        self._flush_requests = 0
        self._flushes_done = 0
        self.thread: threading.Thread | None = None

    # -- lifecycle

    def start(self) -> None:
        """Start the thread."""
        self.recorder.expect_first_event()
        self.thread = threading.Thread(target=self._run, name="rl-insight-flusher", daemon=True)
        self.thread.start()

    def request_flush(self, timeout_s: float) -> bool:
        """Pass everything recorded so far to the transport; True if that succeeded in time."""
        with self._flushed:
            self._flush_requests += 1
            wanted = self._flush_requests
            self.recorder.wake.set()
            return self._flushed.wait_for(lambda: self._flushes_done >= wanted, timeout_s)

    def stop(self, timeout_s: float) -> bool:
        """Flush for the last time and end the thread; True if it ended in time."""
        self._stop.set()
        self.recorder.wake.set()
        if self.thread is None or self.thread is threading.current_thread():
            return True
        self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def note_loss(self, kind: str, reason: str, count: int) -> None:
        """Count batches that the transport dropped, and send cumulative metrics again."""
        self.recorder.losses.count(kind, reason, count)
        self.resend_metrics()

    def add_listener(self, listener: BatchListener) -> None:
        """Call a function with every batch."""
        self._listeners = [*self._listeners, listener]

    def remove_listener(self, listener: BatchListener) -> None:
        """Remove a listener; an unknown one is ignored."""
        self._listeners = [known for known in self._listeners if known != listener]

    def resend_metrics(self) -> None:
        """Send every series again with the next flush."""
        self._resend_metrics = True

    def _run(self) -> None:
        wake = self.recorder.wake
        next_flush = time.monotonic() + self.pace.interval_s
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while not self._stop.is_set():
            wake.wait(self.pace.wait_s(next_flush))
            wake.clear()
            requests = self._flush_requests
            if self.recorder.take_first_event():
                next_flush = min(next_flush, time.monotonic() + _FIRST_FLUSH_S)
            try:
                self.drain()
                if requests > self._flushes_done or time.monotonic() >= next_flush or self._is_urgent():
                    self.flush()
                    next_flush = time.monotonic() + self.pace.interval_s
                    backoff.reset()
                pause_s = 0.0
            except Exception:  # the thread must survive any bug
                logger.exception(_DEFECT)
                self._start_over()
                pause_s = backoff.next_s()
            self._announce(requests)
            if pause_s:
                self._stop.wait(pause_s)
        try:
            self.drain()
            self.flush(final=True)
        except Exception:
            logger.exception(_DEFECT)
        self._announce(self._flush_requests)

    def _is_urgent(self) -> bool:
        """Return whether a failure or stuck work must be sent before the next flush is due."""
        if not self.pace.is_slowed:
            return False
        is_stuck = self._open.has_unreported(self._oldest())
        return self.pace.is_early(is_failing=self._is_failing, is_stuck=is_stuck)

    def _announce(self, requests: int) -> None:
        with self._flushed:
            self._flushes_done = max(self._flushes_done, requests)
            self._flushed.notify_all()

    def _start_over(self) -> None:
        self.recorder.losses.count("batches", "internal_error")
        self._builder = BatchBuilder()
        self._resend_metrics = True

    def _count_bad_event(self) -> None:
        self.recorder.losses.count("events", "internal_error")
        self.recorder.losses.warn_once("internal_error", f"an event could not be encoded: {traceback.format_exc()}")

    # -- from buffers to rows

    def drain(self) -> None:
        """Empty the buffers into rows and series."""
        recorder = self.recorder
        steps = self.steps
        steps.exchange()
        self._metrics.wall_offset_ns = recorder.clock.offset_ns
        self._take(recorder.metrics, steps.add_to_metrics, self._record_metrics)
        if recorder.texts is not None:
            self._sample_sessions(recorder.texts)
        self._take(recorder.spans, steps.add_to_spans, self._take_spans)
        self._take(recorder.points, steps.add_to_points, self._each(self._rows.add_point))
        self._take(recorder.sessions, steps.add_to_spans, self._each(self._rows.add_session))
        recorder.lower_watermark()

    def _take(self, buffer: deque[Any], add_steps: AddSteps, handle: Callable[[list[Any]], None]) -> None:
        remaining = self.steps.limit(buffer)
        hold_ns = _HOLD_NS if remaining < _BACKLOG else _BACKLOG_HOLD_NS
        self._held_since = self.recorder.now()
        while remaining > 0:
            events = _pop_left(buffer, min(remaining, _CHUNK))
            try:
                handle(add_steps(events))
            except Exception:  # noqa: BLE001  # raised before any was added: one by one, to lose only the faulty ones
                for event in events:
                    try:
                        handle(add_steps([event]))
                    except Exception:  # noqa: BLE001
                        self._count_bad_event()
            remaining -= _CHUNK
            self._yield_if_due(hold_ns)

    def _each(self, add: Callable[[Any, BatchBuilder], bool]) -> Callable[[list[Any]], None]:
        """Return a handler for lists of events, from a function that adds one and returns whether it is a failure."""

        def handle_all(events: list[Any]) -> None:
            for event in events:
                try:
                    self._is_failing |= add(event, self._builder)
                except Exception:  # noqa: BLE001  # one bad event must not lose the others
                    self._count_bad_event()

        return handle_all

    def _record_metrics(self, events: list[MetricEvent]) -> None:
        self._metrics.record_all(events, self._count_bad_event)

    def _yield_if_due(self, hold_ns: int = _HOLD_NS) -> None:
        """Send a full batch; yield the GIL if it was held for long enough."""
        self._send_if_full()
        if self.recorder.now() - self._held_since > hold_ns:
            self._yield_gil()

    def _yield_gil(self) -> None:
        time.sleep(_REST_S)
        self._held_since = self.recorder.now()

    def _take_spans(self, spans: list[Span]) -> None:
        ended = [span for span in spans if span.end]
        if len(ended) < len(spans):
            done = set(ended)  # a span may end right now: check each only once
            for span in spans:
                if span not in done:
                    self._keep_open(span)
        if ended:
            self._add_spans(ended)

    def _keep_open(self, span: Span) -> None:
        if len(self._open) < self.recorder.max_spans:
            self._open.add(span)
        else:
            self.recorder.losses.count("spans", "too_many_open")

    def _check_open_spans(self, *, final: bool) -> None:
        """Write spans that have ended; report those open for longer than a flush interval, or all if `final`."""
        due = self._open.take(self.recorder.now() if final else self._oldest())
        while chunk := list(islice(due, _CHUNK)):
            if spans := [span for span in chunk if span is not None]:
                self._add_spans(spans)
            self._yield_if_due()

    def _oldest(self) -> int:
        """Return the start time before which open spans are reported."""
        return self.recorder.now() - int(self._config.flush_interval_s * 1e9)

    def _add_spans(self, spans: list[Span]) -> None:
        """Add spans; if one cannot be encoded, add them one by one, so that only that one is lost."""
        try:
            self._is_failing |= self._rows.add_spans(spans, self._builder)
        except Exception:  # noqa: BLE001
            if len(spans) == 1:
                self._count_bad_event()
                return
            for span in spans:
                self._add_spans([span])

    def _sample_sessions(self, sample: TextSample) -> None:
        """Sample new sessions by their own step, which their phases may not have."""
        for session in list(self.recorder.sessions):
            sample.takes(short_text(session.session_id), session.step, self.recorder.clock.wall_ns(session.start))

    # -- from rows to batches

    def flush(self, *, final: bool = False) -> None:
        """Send everything drained so far, or a heartbeat after a period without events."""
        self._held_since = self.recorder.now()
        self.recorder.clock.follow_steps()
        self._check_open_spans(final=final)
        self.stacks.add_to(self._builder, self.recorder.clock.wall_ns(self.recorder.now()))
        if self._resend_metrics:
            self._resend_metrics = False
            self._metrics.mark_all_changed()
        now_ns = self.recorder.clock.wall_ns(self.recorder.now())
        for count, cell in enumerate(self._metrics.drain(), 1):
            cell.add_to(self._builder, now_ns)
            if count % _CHUNK == 0:
                self._yield_if_due()
        losses = self.recorder.losses.snapshot()
        silence = self.recorder.now() - self._last_sent
        if final or len(self._builder) or losses != self._sent_losses or silence >= self._config.heartbeat_s * 1e9:
            self._send_batch(final=final)

    def _send_if_full(self) -> None:
        builder = self._builder
        is_full = builder.value_count >= _VALUES_PER_BATCH or builder.packed_spans >= _SPANS_PER_BATCH
        if is_full or builder.size_bytes > self._max_batch_bytes:
            self._yield_gil()  # building a batch takes as long as one hold: let a training thread run first
            self._send_batch()

    def _send_batch(self, *, final: bool = False) -> None:
        builder, self._builder = self._builder, BatchBuilder()
        self._sequence += 1
        self._sent_losses = self.recorder.losses.snapshot()
        self._last_sent = self.recorder.now()
        self._is_failing = False
        batch = builder.build(
            self.pace.with_heartbeat(self.process),
            sequence=self._sequence,
            sent_ns=self.recorder.clock.wall_ns(self._last_sent),
            losses=self._sent_losses,
            final=final,
        )
        for listener in self._listeners:
            try:
                listener(batch)
            except Exception:  # the batch is still sent
                logger.exception("a batch listener failed.")
        self._send(encode(batch))


def _pop_left(buffer: deque[Any], count: int) -> list[Any]:
    """Remove and return the oldest events; fewer if a full buffer has just dropped some."""
    events: list[Any] = []
    with contextlib.suppress(IndexError):
        events.extend(starmap(buffer.popleft, repeat((), count)))  # keeps those before the error
    return events


def _redaction_failed(losses: Losses) -> None:
    losses.refuse("attributes", "redaction_failed", "the redaction function raised: the values were hidden.")
