"""Test instrumentation without a server: a fake clock, predictable ids, and a monitor that captures its records.

With pytest, the fixture `insight_capture` is available once RL-Insight is installed:

    def test_rollouts_are_counted(insight_capture):
        generate(prompts)
        assert insight_capture.value("rollouts") == len(prompts)

Anywhere else, `capture()` does the same for a `with` block.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from rl_insight.monitor import Monitor
from rl_insight.recorder.clock import Clock
from rl_insight.recorder.context import ContextScope, current_session_id, current_span, current_step, current_task
from rl_insight.recorder.flusher import Flusher
from rl_insight.recorder.ids import IdSource
from rl_insight.recorder.recorder import Recorder
from rl_insight.recorder.session_producer import nothing_to_join
from rl_insight.schema import Process
from rl_insight.schema.records import (
    EventRecord,
    HistogramRecord,
    LogRecord,
    Record,
    SampleRecord,
    SpanRecord,
    records,
)
from rl_insight.sessions.records import SessionBook, SessionRecord

__all__ = ["CaptureMonitor", "FakeClock", "InternalError", "capture"]

START_NS = 1_767_225_600_000_000_000
"""The start of a fake clock: midnight on January 1, 2026, UTC."""
_SEED = bytes(range(16))

RecordT = TypeVar("RecordT", bound=Record)


class InternalError(AssertionError):
    """RL-Insight lost an event to an internal error; the message has the traceback."""


class FakeClock:
    """A clock that moves only on request.

    >>> clock = FakeClock()
    >>> before = clock.wall_ns()
    >>> clock.advance(1.5)
    >>> clock.wall_ns() - before
    1500000000
    """

    def __init__(self, start_ns: int = START_NS) -> None:
        self._wall_ns = start_ns
        self._monotonic_ns = 1_000_000_000
        self.readings = 0
        """The number of reads of the monotonic time."""

    def monotonic_ns(self) -> int:
        """Return the monotonic time."""
        self.readings += 1
        return self._monotonic_ns

    def wall_ns(self) -> int:
        """Return the wall-clock time."""
        return self._wall_ns

    def advance(self, seconds: float) -> None:
        """Advance the time."""
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} s: monotonic time only moves forward. Use step_wall().")
        self._monotonic_ns += round(seconds * 1e9)
        self._wall_ns += round(seconds * 1e9)

    def step_wall(self, seconds: float) -> None:
        """Step the wall clock, forward or backward, as NTP does."""
        self._wall_ns += round(seconds * 1e9)


class _InlineFlusher(Flusher):
    """A flusher without a thread: it runs only when called, so tests are deterministic."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.defects: list[str] = []
        self._turn = threading.Lock()

    def start(self) -> None:
        """Do nothing: there is no thread."""

    def request_flush(self, timeout_s: float, *, final: bool = False) -> bool:  # noqa: ARG002  # nothing to wait for
        """Flush now."""
        with self._turn:
            self.drain()
            self.flush(final=final)
        return True

    def stop(self, timeout_s: float) -> bool:
        """Flush for the last time."""
        return self.request_flush(timeout_s, final=True)

    def _count_bad_event(self) -> None:
        super()._count_bad_event()
        self.defects.append(traceback.format_exc())


class CaptureMonitor(Monitor):
    """A monitor that records into memory from its creation, with a fake clock and predictable ids.

    Its properties return what it recorded, as `rl_insight.schema.records`; each flushes first.

    >>> monitor = CaptureMonitor()
    >>> with monitor.trace_span("generate", {"tokens": 512}):
    ...     monitor.clock.advance(2.0)
    >>> [(span.name, span.duration_ns, span.attributes) for span in monitor.spans]
    [('generate', 2000000000, {'tokens': 512})]
    >>> monitor.finish()

    Args:
        config: As for `init()`. The environment and `server` are ignored.
        clock: The fake clock to use; a new one by default.
    """

    def __init__(self, config: Any = None, *, clock: FakeClock | None = None) -> None:
        super().__init__()
        from rl_insight.config import load_config
        from rl_insight.startup import Pipeline, identify
        from rl_insight.transport import MemoryTransport

        settings = load_config(config, environ={})
        settings.server.backend = "memory"
        self.clock = clock or FakeClock()
        self._join = nothing_to_join
        self._transport = MemoryTransport()
        recorder = Recorder(
            settings.recorder,
            clock=Clock(now=self.clock.monotonic_ns, wall=self.clock.wall_ns),
            ids=IdSource(_SEED),
        )
        # Independent of this machine, its launcher and its environment.
        process = msgspec.structs.replace(
            identify(replace(settings, run_id=settings.run_id or "test-run")),
            process_id="test-process",
            host="test-host",
            pid=1,
            rank=settings.rank,
            started_ns=0,
        )
        transport = self._transport
        self._flusher = _InlineFlusher(recorder, process, settings, transport.send, transport.max_batch_bytes)
        transport.on_loss = self._flusher.note_loss
        self._pipeline = Pipeline(settings, process, recorder, self._flusher, transport)
        self._recorder = recorder

    @property
    def records(self) -> list[Record]:
        """All records as sent: an open span and its completion are two records."""
        self.flush()
        return [record for batch in self._transport.batches for record in records(batch)]

    @property
    def spans(self) -> list[SpanRecord]:
        """The latest record of every span, in the order in which they were first sent."""
        return list({span.span_id: span for span in self._of(SpanRecord)}.values())

    @property
    def events(self) -> list[EventRecord]:
        """The events recorded by `trace_event`."""
        return self._of(EventRecord)

    @property
    def logs(self) -> list[LogRecord]:
        """The log lines recorded by `log` and `InsightHandler`."""
        return self._of(LogRecord)

    @property
    def metrics(self) -> list[SampleRecord | HistogramRecord]:
        """The records of the `metric_*` functions; counters and histograms are totals since the start."""
        return [record for record in self.records if isinstance(record, (SampleRecord, HistogramRecord))]

    @property
    def sessions(self) -> list[SessionRecord]:
        """The current record of every session, in the order in which they were first reported."""
        self.flush()
        book = SessionBook()
        for batch in self._transport.batches:
            book.add(batch)
        return book.records()

    @property
    def losses(self) -> dict[str, int]:
        """Counts of dropped data by `kind/reason`."""
        self.flush()
        return {f"{loss.kind}/{loss.reason}": loss.count for loss in self._flusher.recorder.losses.snapshot()}

    @property
    def process(self) -> Process:
        """The process in the records."""
        return self._flusher.process

    def span(self, name: str) -> SpanRecord:
        """Return the only span of this name.

        Raises:
            LookupError: there is none, or more than one.
        """
        found = [span for span in self.spans if span.name == name]
        if len(found) != 1:
            raise LookupError(f"{len(found)} spans are named {name!r}; recorded: {[span.name for span in self.spans]}.")
        return found[0]

    def metric(self, name: str, **labels: str) -> SampleRecord | HistogramRecord:
        """Return the latest record of a metric that has at least these labels.

        Raises:
            LookupError: there is none.
        """
        metrics = self.metrics
        for record in reversed(metrics):
            if record.metric == name and labels.items() <= record.labels.items():
                return record
        recorded = sorted({(record.metric, *record.labels.items()) for record in metrics})
        raise LookupError(f"no metric {name!r} with labels {labels!r}; recorded: {recorded}.")

    def value(self, name: str, **labels: str) -> float:
        """Return a gauge's latest value, or a counter's total."""
        record = self.metric(name, **labels)
        if isinstance(record, HistogramRecord):
            raise TypeError(f"metric {name!r} is a histogram: use metric().")
        return float(record.value)

    def clear(self) -> None:
        """Discard the records so far; counters and histograms keep their totals."""
        self.flush()
        self._transport.clear()

    def raise_defects(self) -> None:
        """Raise if RL-Insight had an internal error.

        Raises:
            InternalError: an event was lost to a bug in RL-Insight.
        """
        lost = [name for name in self.losses if name.endswith("/internal_error")]
        if lost:
            raise InternalError("\n".join([f"lost to an internal error: {lost}", *self._flusher.defects]))

    def _of(self, kind: type[RecordT]) -> list[RecordT]:
        return [record for record in self.records if isinstance(record, kind)]


@contextmanager
def capture(config: Any = None, *, clock: FakeClock | None = None) -> Iterator[CaptureMonitor]:
    """Capture what `rl_insight`'s functions record inside a `with` block.

    `init()` and `finish()` inside the block check their arguments and otherwise do nothing, so entire programs can be
    tested. Blocks may be nested; the innermost one captures.

    >>> import rl_insight as insight
    >>> with capture() as captured:
    ...     insight.metric_count("rollouts", 3)
    >>> captured.value("rollouts")
    3.0

    Raises:
        InternalError: an event was lost to a bug in RL-Insight.
    """
    from rl_insight.monitor import default_monitor

    monitor = CaptureMonitor(config, clock=clock)
    before = default_monitor._redirect_to(monitor)
    # A span that one test left open must not become the parent of another test's spans.
    variables = (current_span, current_step, current_session_id, current_task)
    try:
        with ContextScope(dict.fromkeys(variables), monitor):
            yield monitor
    finally:
        default_monitor._restore(before)
        monitor.finish()
    monitor.raise_defects()


try:
    import pytest
except ImportError:  # the fixture requires pytest
    pass
else:

    @pytest.fixture
    def insight_capture() -> Iterator[CaptureMonitor]:
        """Capture what the test records through `rl_insight`'s functions."""
        with capture() as monitor:
            yield monitor
