"""XTuner producer traces as JSON Lines: one line per start, end, error or instant of a stage of a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rl_insight.compat.xtuner.samples import TraceEvent
from rl_insight.exchange.importing.readers.base import FileContext, FileRows, Reader, number_of
from rl_insight.schema import BatchBuilder, Process
from rl_insight.schema.json_values import json_text, whole_number
from rl_insight.schema.names import DURATION_SEGMENT, PHASE_SEGMENT

_CANCELLED = frozenset({"cancelled", "canceled", "aborted"})
_FAILED = frozenset({"error", "failed"})
_KEPT = (
    "task_name", "uid", "model_step", "producer_future_step", "produce_batch_id", "error_msg",
)  # fmt: skip


class _Stage(msgspec.Struct, frozen=True):
    name: str
    span_id: int
    parent: int
    start_ns: int


class XtunerReader(Reader):
    """Reads producer traces; a stage that has not ended is an open span, so hung tasks are visible."""

    decoder = msgspec.json.Decoder(TraceEvent)

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._running: dict[str, list[_Stage]] = {}
        """The running stages of each task."""
        self._lines = 0

    def add(self, rows: Mapping[Any, FileRows], record: TraceEvent) -> int:
        """Add a line to the rows of its worker."""
        self._lines += 1
        self._add(rows[whole_number(record.worker_rank)].builder, record)
        return 1

    def process(self, key: int | None) -> Process:
        """Return the process of a worker."""
        return self.context.process("" if key is None else f"worker{key}", role="producer", rank=key)

    def _add(self, builder: BatchBuilder, line: TraceEvent) -> None:
        name, dot, kind = line.stage.rpartition(".")
        time_ns = self.context.wall_ns(line.timestamp_s)
        if not dot or kind not in {"start", "end", "error"}:
            builder.add_event(time_ns=time_ns, name=line.stage, **self._where(line), attributes=_attributes(line))
            return
        if kind == "start":
            running = self._running.setdefault(line.trace_id, [])
            parent = running[-1].span_id if running else 0
            stage = _Stage(name, number_of(self.context.identity, self._lines), parent, time_ns)
            running.append(stage)
            self._write(builder, line, stage, -1)
            return
        begun = self._finish(line.trace_id, name)
        if begun is None:
            start = self.context.wall_ns(line.timestamp_s - (line.elapsed_s or 0.0))
            begun = _Stage(name, number_of(self.context.identity, self._lines), 0, start)
        self._write(builder, line, begun, max(time_ns - begun.start_ns, 0))

    def _finish(self, trace_id: str, name: str) -> _Stage | None:
        """Remove and return the latest running stage with a name; None for an end without a start."""
        running = self._running.get(trace_id, [])
        for place in range(len(running) - 1, -1, -1):
            if running[place].name == name:
                found = running.pop(place)
                if not running:
                    del self._running[trace_id]
                return found
        return None

    def _write(self, builder: BatchBuilder, line: TraceEvent, stage: _Stage, duration: int) -> None:
        status = "open" if duration < 0 else _outcome(line)
        where = self._where(line)
        builder.add_span(
            span_id=stage.span_id,
            trace=(number_of(self.context.identity), number_of(line.trace_id)),
            parent_id=stage.parent,
            name=stage.name,
            start_ns=stage.start_ns,
            duration_ns=duration,
            segment=PHASE_SEGMENT if where["session_id"] is not None else DURATION_SEGMENT,
            status=status,
            error=str(line.error_msg).partition(":")[0][:200] if line.error_msg and status != "ok" else None,
            attributes=_attributes(line),
            **where,
        )

    @staticmethod
    def _where(line: TraceEvent) -> dict[str, Any]:
        session = line.session_uid if line.session_uid is not None else line.uid
        return {
            "lane": None if line.task_name is None else str(line.task_name),
            "step": whole_number(line.train_step),
            "session_id": line.trace_id if session is None else str(session),
        }


def _outcome(line: TraceEvent) -> str:
    status = str(line.status or "").lower()
    if status in _CANCELLED or "cancelled" in str(line.error_msg or "").lower():
        return "cancelled"
    return "error" if line.stage.endswith(".error") or status in _FAILED else "ok"


def _attributes(line: TraceEvent) -> str | None:
    return json_text({name: value for name in _KEPT if (value := getattr(line, name)) is not None})
