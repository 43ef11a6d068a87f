"""Chrome traces, for Perfetto and `chrome://tracing`: named processes and threads, flows, counters, aligned clocks.

The intervals on a thread of such a trace must be nested. Spans of a lane that merely overlap, as those of concurrent
sessions do, are spread over as many threads as needed; a span is never drawn inside a span of another trace.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from rl_insight.exchange.exporting import rows
from rl_insight.exchange.exporting.rows import SPANS_BY_LANE, ExportedSeries, Row, Selection
from rl_insight.exchange.exporting.writers.output import output_file
from rl_insight.schema.names import process_name
from rl_insight.schema.records import read_object
from rl_insight.store import queries
from rl_insight.store.queries import Cursor
from rl_insight.store.queries.process_ends import process_ends

_encode = msgspec.json.Encoder().encode
_WRITE_EVENTS = 2_000


def write_chrome(cursor: Cursor, path: Path, selection: Selection) -> int:
    """Write a trace; return the number of events."""
    with output_file(path) as stream:
        return _Trace(cursor, stream, selection).write()


class _Slice(msgspec.Struct, frozen=True):
    """Where a span was drawn."""

    pid: int
    tid: int
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class _Thread:
    """One row of the trace: nested intervals, added in the order of their starts."""

    number: int
    """Its position among the threads of the lane."""
    tid: int
    running: list[tuple[int, Row]] = field(default_factory=list)
    """Running spans with their ends; the innermost is last."""


@dataclass(slots=True)
class _LaneThreads:
    """The threads of one lane, and the thread on which each running span is drawn."""

    threads: list[_Thread] = field(default_factory=list)
    drawn_on: dict[int, _Thread] = field(default_factory=dict)
    _busy: list[tuple[int, int]] = field(default_factory=list)
    """A heap of the times at which threads become idle, with their numbers."""
    _idle: list[int] = field(default_factory=list)

    def place(self, span: Row, end_ns: int) -> _Thread | None:
        """Return the thread for a span, preferably its parent's; None if a new thread is needed."""
        home = self.drawn_on.get(span.parent_id)
        outer = None if home is None else self._innermost(home, span.start_ns)
        parent_runs = span.parent_id in self.drawn_on
        if parent_runs and outer is not None and outer[0] >= end_ns:
            return home
        is_root = span.trace_high != 0 and span.parent_id == 0
        if not parent_runs and not is_root:
            for thread in self.threads:
                outer = self._innermost(thread, span.start_ns)
                if outer is not None and outer[0] >= end_ns and _may_enclose(outer[1], span):
                    return thread
        while self._busy and self._busy[0][0] <= span.start_ns:
            heappush(self._idle, heappop(self._busy)[1])
        return self.threads[heappop(self._idle)] if self._idle else None

    def draw(self, thread: _Thread, span: Row, end_ns: int) -> None:
        """Put a span on a thread."""
        if self._innermost(thread, span.start_ns) is None:
            heappush(self._busy, (end_ns, thread.number))
        thread.running.append((end_ns, span))
        self.drawn_on[span.span_id] = thread

    def _innermost(self, thread: _Thread, at_ns: int) -> tuple[int, Row] | None:
        running = thread.running
        while running and running[-1][0] <= at_ns:
            self.drawn_on.pop(running.pop()[1].span_id, None)
        return running[-1] if running else None


def _may_enclose(outer: Row, inner: Row) -> bool:
    """Return whether time alone may nest one span in another: spans from other tools' traces have no trace ids."""
    if not outer.trace_high or not inner.trace_high:
        return True
    return (outer.trace_high, outer.trace_low) == (inner.trace_high, inner.trace_low)


class _Trace:
    def __init__(self, cursor: Cursor, stream: BinaryIO, selection: Selection) -> None:
        self._cursor = cursor
        self._stream = stream
        self._selection = selection
        found = queries.summary(cursor)
        self._run_id = found.run_id
        self._base_ns = found.start_ns or 0
        self._ends = process_ends(cursor, time.time_ns())
        self._processes = rows.processes(cursor)
        self._pids = {number: place + 1 for place, number in enumerate(self._processes)}
        self._lanes: dict[int, _LaneThreads] = {}
        self._next_tid: dict[int, int] = {}
        # Flow arrows lead from these to their children.
        self._far_parents = rows.far_parents(cursor, selection)
        self._drawn: dict[int, _Slice] = {}
        self._waiting: list[tuple[Row, _Slice]] = []
        self._flows = 0
        self._pending: list[bytes] = []
        self._written = 0

    def write(self) -> int:
        about = {"run_id": self._run_id, "generator": "rl-insight"}
        head = (
            f'{{"displayTimeUnit":"ms","baseTimeNanoseconds":{self._base_ns},'
            f'"otherData":{_encode(about).decode()},"traceEvents":[\n'
        )
        self._stream.write(head.encode())
        self._name_processes()
        for span in rows.recorded(self._cursor, "spans", self._selection, SPANS_BY_LANE):
            self._add_span(span)
        self._add_flows()
        for instant in rows.recorded(self._cursor, "events", self._selection):
            self._add_instant(instant, instant.name, "event")
        for instant in rows.recorded(self._cursor, "logs", self._selection):
            self._add_instant(instant, instant.message, "log")
        self._add_counters()
        self._flush()
        self._stream.write(b"\n]}\n")
        return self._written

    def _add(self, event: dict[str, Any]) -> None:
        self._pending.append(_encode(event))
        if len(self._pending) >= _WRITE_EVENTS:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        start = b",\n" if self._written else b""
        self._stream.write(start + b",\n".join(self._pending))
        self._written += len(self._pending)
        self._pending = []

    def _micros(self, time_ns: int) -> float:
        return (time_ns - self._base_ns) / 1000

    def _name_processes(self) -> None:
        for number, pid in self._pids.items():
            process = self._processes[number]
            name = f"{process_name(process.role, process.rank)} ({process.host} {process.pid})"
            self._add({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
            self._add({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}})

    def _new_thread(self, lane: _LaneThreads, row: Row) -> _Thread:
        pid = self._pids[row.process]
        tid = self._next_tid[pid] = self._next_tid.get(pid, 0) + 1
        thread = _Thread(len(lane.threads), tid)
        lane.threads.append(thread)
        name = row.lane or "main"
        if len(lane.threads) > 1:
            name = f"{name} ({len(lane.threads)})"
        self._add({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})
        self._add({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}})
        return thread

    def _add_span(self, span: Row) -> None:
        is_open = span.duration_ns < 0
        end_ns = max(self._ends[span.process].until_ns, span.start_ns) if is_open else span.start_ns + span.duration_ns
        pid = self._pids[span.process]
        lane = self._lanes.setdefault(span.lane_id, _LaneThreads())
        thread = lane.place(span, end_ns) or self._new_thread(lane, span)
        lane.draw(thread, span, end_ns)
        tid = thread.tid
        self._add(
            {
                "ph": "X",
                "name": span.name,
                "cat": span.segment,
                "pid": pid,
                "tid": tid,
                "ts": self._micros(span.start_ns),
                "dur": (end_ns - span.start_ns) / 1000,
                "args": _arguments(span, is_open=is_open),
            }
        )
        place = _Slice(pid, tid, span.start_ns, end_ns)
        if span.span_id in self._far_parents:
            self._drawn[span.span_id] = place
        if span.parent_id in self._far_parents:
            self._waiting.append((span, place))

    def _add_flows(self) -> None:
        """Draw an arrow to each span whose parent is on another lane."""
        for span, child in self._waiting:
            parent = self._drawn.get(span.parent_id)
            if parent is None or (parent.pid, parent.tid) == (child.pid, child.tid):
                continue
            self._flows += 1
            shared = {"cat": "parent", "name": "parent", "id": self._flows}
            leaves_ns = min(max(child.start_ns, parent.start_ns), parent.end_ns)
            start = {"ph": "s", "pid": parent.pid, "tid": parent.tid, "ts": self._micros(leaves_ns)}
            end = {"ph": "f", "bp": "e", "pid": child.pid, "tid": child.tid, "ts": self._micros(child.start_ns)}
            self._add(shared | start)
            self._add(shared | end)

    def _add_instant(self, row: Row, name: str, category: str) -> None:
        pid = self._pids[row.process]
        lane = self._lanes.setdefault(row.lane_id, _LaneThreads())
        tid = (lane.threads[0] if lane.threads else self._new_thread(lane, row)).tid
        self._add(
            {
                "ph": "i",
                "s": "t",
                "name": name,
                "cat": category,
                "pid": pid,
                "tid": tid,
                "ts": self._micros(row.time_ns),
                "args": read_object(row.attributes) | _known(row, "level", "logger", "step"),
            }
        )

    def _add_counters(self) -> None:
        names = {number: _counter_name(one) for number, one in rows.series(self._cursor).items()}
        for sample in rows.recorded(self._cursor, "samples", self._selection):
            if isfinite(sample.value):
                self._add(
                    {
                        "ph": "C",
                        "name": names[sample.series_id],
                        "pid": self._pids[sample.process],
                        "tid": 0,
                        "ts": self._micros(sample.time_ns),
                        "args": {"value": sample.value},
                    }
                )


def _arguments(span: Row, *, is_open: bool) -> dict[str, Any]:
    found = read_object(span.attributes)
    found["span_id"] = f"{span.span_id:016x}"
    found["trace_id"] = f"{span.trace_high:016x}{span.trace_low:016x}"
    if span.parent_id:
        found["parent_id"] = f"{span.parent_id:016x}"
    found["segment"] = span.segment
    found["status"] = "open" if is_open else span.status
    return found | _known(span, "lane", "error", "step", "session_id")


def _known(row: Any, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(row, name, None)) is not None}


def _counter_name(series: ExportedSeries) -> str:
    shown = ",".join(f"{key}={value}" for key, value in sorted(read_object(series.labels).items()))
    return f"{series.name}{{{shown}}}" if shown else series.name
