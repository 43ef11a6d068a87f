"""XTuner's producer trace: events of samples, written to a file and recorded as phases."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rl_insight.compat._recording import BatchFiles
from rl_insight.compat.xtuner.samples import TraceEvent, build_trace_event, samples_of
from rl_insight.monitor import default_monitor
from rl_insight.recorder import context
from rl_insight.recorder.sessions import Phase
from rl_insight.schema import Batch

if TYPE_CHECKING:
    from rl_insight.recorder.flusher import Flusher

TRACE_JSONL_BASENAME = "producer_trace"
_SHARD_BYTES = 256 * 1024 * 1024


_encode = msgspec.json.Encoder(enc_hook=str).encode


class ProducerTraceFile(BatchFiles):
    """Appends one line per event, in shards of 256 MiB. Lines are written when the flusher sends a batch.

    Args:
        flusher: The flusher of the default monitor.
        folder: The folder of the shards.
        writer: The part of their names that distinguishes the writers of a folder.
    """

    MAX_WAITING = 100_000
    """The most lines to buffer between batches; more are dropped and counted. `max_events` does not limit them:
    XTuner's files are complete, regardless of what its viewer keeps."""

    def __init__(self, flusher: Flusher, folder: Path, writer: str) -> None:
        self._folder = folder
        self._writer = writer
        self._shard = 0
        self._shard_bytes = 0
        self._waiting: list[bytes] = []
        super().__init__(flusher)

    def add(self, event: TraceEvent) -> None:
        """Add an event; thread-safe."""
        if len(self._waiting) >= self.MAX_WAITING:
            self._flusher.recorder.losses.count("trace_events", "buffer_full")
            return
        self._waiting.append(_encode(event))

    def take(self, batch: Batch) -> bool:
        """Write the buffered lines; the batch is only the trigger."""
        del batch
        self.gather(everything=True)
        return True

    def gather(self, *, everything: bool) -> None:
        """Take the buffered lines."""
        del everything
        count = len(self._waiting)
        lines = self._waiting[:count]
        del self._waiting[:count]
        for line in lines:
            if self._shard_bytes > _SHARD_BYTES:
                self._shard, self._shard_bytes = self._shard + 1, 0
            self._shard_bytes += len(line) + 1
            name = f"{TRACE_JSONL_BASENAME}_{self._writer}_{self._shard:06d}.jsonl"
            self.lines.setdefault(self._folder / name, []).append(line)


class SampleRecorder:
    """Records the events of samples."""

    file: ProducerTraceFile | None

    def record(self, target: Any, stage: str, **fields: Any) -> TraceEvent | None:
        """Record an event of a sample; return it, or None for a target without a uid."""
        event = build_trace_event(target, stage, **fields)
        if event is not None and self.file is not None:
            self.file.add(event)
        return event

    def record_many(self, targets: Any, stage: str, **fields: Any) -> list[TraceEvent]:
        """Record an event of each sample."""
        found = [self.record(target, stage, **fields) for target in samples_of(targets)]
        return [event for event in found if event is not None]

    async def mark(self, target: Any, stage: str, **fields: Any) -> TraceEvent | None:
        """Do the same as `record`."""
        return self.record(target, stage, **fields)

    async def mark_many(self, targets: Any, stage: str, **fields: Any) -> list[TraceEvent]:
        """Do the same as `record_many`."""
        return self.record_many(targets, stage, **fields)


class SampleSpan(context.AlsoAsync):
    """A stage of one or several samples: `.start` and `.end` or `.error` lines, and a phase of each sample."""

    def __init__(self, recorder: SampleRecorder, target: Any, name: str, fields: Mapping[str, Any]) -> None:
        self._recorder = recorder
        self._target = target
        self._name = name
        self._fields = dict(fields)
        self._result: Any = None
        self._phases: list[Any] = []
        self._scope = ExitStack()
        self._start = 0.0

    def end(self, result: Any) -> Any:
        """Set a function's result, whose samples, if any, end the span; return it."""
        self._result = result
        return result

    def __enter__(self) -> SampleSpan:
        self._start = time.perf_counter()
        for event in self._record(self._target, "start"):
            self._begin_phase(event)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        fields: dict[str, Any] = {"elapsed_s": time.perf_counter() - self._start}
        if kind is None:
            ended = self._result if samples_of(self._result) else self._target
            events = self._record(ended, "end", **fields)
        else:
            events = self._record(self._target, "error", **fields, error_msg=f"{kind.__name__}: {error}")
        if not self._phases:  # a function that only returns samples
            for event in events:
                self._begin_phase(event, fields["elapsed_s"])
        for phase in self._phases:
            phase.finish(kind)
        self._scope.close()

    def _record(self, target: Any, moment: str, **more: Any) -> list[TraceEvent]:
        stage = f"{self._name}.{moment}"
        fields = {**self._fields, **more}
        events = [self._recorder.record(sample, stage, **fields) for sample in samples_of(target) or (None,)]
        return [event for event in events if event is not None]

    def _begin_phase(self, event: TraceEvent, elapsed_s: float = 0.0) -> None:
        phase = default_monitor.phase(self._name, **event.known())
        if not isinstance(phase, Phase):  # nothing is recorded
            return
        with ExitStack() as stack:
            stack.enter_context(session_of(event))
            phase.begin(context.current_span.get())
            phase.start -= round(elapsed_s * 1e9)
            if not self._phases:  # inner spans belong to the first sample
                stack.callback(context.reset, context.current_span, context.current_span.set(phase))
                self._scope = stack.pop_all()
        self._phases.append(phase)


@contextmanager
def session_of(event: TraceEvent) -> Iterator[None]:
    """Make a sample's trace the current session, and its step the current step."""
    token = context.current_session_id.set(event.trace_id)
    step = context.step_of(event.train_step)
    with nullcontext() if step is None else context.ContextScope({context.current_step: step}, None):
        yield
    context.reset(context.current_session_id, token)
