"""Chrome trace events, as `chrome://tracing`, Perfetto, torch's profiler, viztracer and AReaL's perf tracer write them.

AReaL writes one event per line; the others write one JSON document, which `importing._chrome_files` takes apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

import msgspec

from rl_insight.exchange.importing.readers.base import (
    FileContext,
    Reader,
    decoded_lines,
    json_text,
    number_of,
    whole_step,
)
from rl_insight.exchange.importing.readers.rows import FileRows
from rl_insight.schema import Batch, Process
from rl_insight.schema.names import metric_name
from rl_insight.store.gathered import LAST_TIME_NS

_MAX_COUNTER_PARTS = 64
_OWN_ARGS = frozenset({"span_id", "parent_id", "trace_id", "step", "session_id", "status", "error", "segment", "lane"})
"""What our own export notes in `args`, and what has a dedicated column."""


_PROFILER_STEP = re.compile(r"ProfilerStep#(\d{1,18})$")


class ChromeEvent(msgspec.Struct, gc=False):
    """One trace event; times are microseconds."""

    ph: str
    name: str = ""
    cat: str = ""
    ts: int | float = 0
    dur: int | float | None = None
    pid: int | str = 0
    tid: int | str = 0
    id: Any = None
    id2: Any = None
    args: Any = None


_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(ChromeEvent)
Place = tuple[int | str, int | str]


class Names:
    """Names of processes and threads, from metadata events, which may stand anywhere in a file."""

    def __init__(self) -> None:
        self.processes: dict[int | str, str] = {}
        self.threads: dict[Place, str] = {}

    def note(self, event: ChromeEvent) -> None:
        """Take over a metadata event."""
        name = event.args.get("name") if isinstance(event.args, dict) else None
        if not isinstance(name, str) or not name:
            return
        if event.name == "process_name":
            self.processes[event.pid] = name
        elif event.name == "thread_name":
            self.threads[event.pid, event.tid] = name


class ChromeReader(Reader):
    """Reads trace events; a process for each pid, a lane for each thread."""

    def __init__(self, context: FileContext, names: Names | None = None, base_ns: int = 0) -> None:
        super().__init__(context)
        self.names = names or Names()
        self._base_ns = base_ns
        self._processes: dict[int | str, Process] = {}
        self._open: dict[Any, list[tuple[int, int, int, str, dict[str, Any]]]] = {}
        self._events = 0

    def convert(self, data: bytes) -> Iterator[Batch]:
        """Yield the batches of some events, one a line."""
        yield from self.convert_events(decoded_lines(data, _decoder, self.context.counts))

    def convert_events(self, events: Iterable[ChromeEvent]) -> Iterator[Batch]:
        """Yield a batch for each process that the events tell about."""
        builders: dict[int | str, _Rows] = {}
        for event in events:
            self._events += 1
            if event.ph == "M":
                self.names.note(event)
                continue
            rows = builders.get(event.pid)
            if rows is None:
                rows = builders[event.pid] = _Rows()
            try:
                self._add(rows, event)
            except (ValueError, OverflowError, TypeError) as error:
                self.context.counts.records -= 1
                self.context.counts.note_bad(f"{error} in the event {event.name[:60]!r}")
        for pid, rows in builders.items():
            if len(rows.builder):
                yield self.context.build(rows.builder, self._process(pid))

    def _process(self, pid: int | str) -> Process:
        found = self._processes.get(pid)
        if found is None:
            number = pid if isinstance(pid, int) and 0 <= pid < 2**31 else 0
            role = self.names.processes.get(pid, "")
            rank = pid if isinstance(pid, int) and 0 <= pid < 2**16 else None
            where = {"host": pid} if isinstance(pid, str) and pid else {}  # Ray's timelines have nodes there
            found = self._processes[pid] = self.context.process(
                str(pid), pid=number, role=role or "trace", rank=rank, **where
            )
        return found

    def _add(self, rows: _Rows, event: ChromeEvent) -> None:
        kind = event.ph
        if kind == "X":
            self._add_span(rows, event, self._time(event.ts), _nanoseconds(event.dur or 0.0), event.args)
        elif kind in {"B", "b", "S"}:
            self._begin(rows, event)
        elif kind in {"E", "e", "F"}:
            self._end(rows, event)
        elif kind in {"i", "I", "R", "n"}:
            args = _dict(event.args)
            rows.builder.add_event(
                time_ns=self._time(event.ts),
                name=event.name,
                lane=self._lane(event),
                attributes=json_text(_with_category(args, event.cat)),
            )
        elif kind == "C":
            rows.add_counter(event, self._time(event.ts))

    def _time(self, microseconds: float) -> int:
        if not isfinite(microseconds):
            raise ValueError("a time is not a number")
        time_ns = _nanoseconds(microseconds) + self._base_ns
        if time_ns < 10**18:  # before September 2001: it counts from some origin of the writer's own
            time_ns += self.context.origin_ns
        return max(0, min(time_ns, LAST_TIME_NS))

    def _lane(self, event: ChromeEvent) -> str:
        name = self.names.threads.get((event.pid, event.tid))
        return name or (f"thread {event.tid}" if isinstance(event.tid, int) else event.tid)

    def _begin(self, rows: _Rows, event: ChromeEvent) -> None:
        args = _dict(event.args)
        start = self._time(event.ts)
        span_id = self._span_id(args)
        key = _key(event)
        stack = self._open.setdefault(key, [])
        parent = stack[-1][0] if stack and event.ph == "B" else 0
        stack.append((span_id, start, parent, event.name, args))
        self._write(rows, event, span_id, start, -1, parent, event.name, args)

    def _end(self, rows: _Rows, event: ChromeEvent) -> None:
        stack = self._open.get(_key(event))
        if not stack:
            raise ValueError("an end without a beginning")
        span_id, start, parent, name, args = stack.pop()
        if not stack:
            del self._open[_key(event)]
        duration = max(self._time(event.ts) - start, 0)
        self._write(rows, event, span_id, start, duration, parent, name, {**args, **_dict(event.args)})

    def _add_span(self, rows: _Rows, event: ChromeEvent, start: int, duration: int, args: Any) -> None:
        values = _dict(args)
        parent = _hex(values.get("parent_id"))
        length = max(0, min(duration, LAST_TIME_NS))
        self._write(rows, event, self._span_id(values), start, length, parent, event.name, values)

    def _span_id(self, args: dict[str, Any]) -> int:
        return _hex(args.get("span_id")) or number_of(self.context.identity, self._events)

    def _write(
        self,
        rows: _Rows,
        event: ChromeEvent,
        span_id: int,
        start: int,
        duration: int,
        parent: int,
        name: str,
        args: dict[str, Any],
    ) -> None:
        others = {key: value for key, value in args.items() if key not in _OWN_ARGS} if args else args
        trace = args.get("trace_id")
        high, low = (trace[:16], trace[16:]) if isinstance(trace, str) and len(trace) == 32 else ("", "")
        status = args.get("status")
        lane = args.get("lane")
        rows.builder.add_span(
            span_id=span_id,
            trace=(_hex(high), _hex(low)) if low else (0, span_id),
            parent_id=parent,
            name=name,
            start_ns=start,
            duration_ns=duration,
            segment=_text(args.get("segment")) or "duration",
            lane=_text(lane) if "span_id" in args else self._lane(event),
            status="open" if duration < 0 else _text(status) or "ok",
            error=_text(args.get("error")),
            step=_step(args.get("step"), name),
            session_id=_text(args.get("session_id")),
            attributes=json_text(_with_category(others, event.cat)),
        )


class _Rows(FileRows):
    """The events of one process in the making."""

    def add_counter(self, event: ChromeEvent, time_ns: int) -> None:
        values = {key: value for key, value in _dict(event.args).items() if isinstance(value, (int, float))}
        for part, value in list(values.items())[:_MAX_COUNTER_PARTS]:
            labels = {} if len(values) == 1 else {"part": part}
            self.add_gauge(metric_name(event.name), float(value), time_ns=time_ns, labels=labels)


def _key(event: ChromeEvent) -> Any:
    """Return what a beginning and its end share: the thread, or for asynchronous events the id."""
    if event.ph in {"B", "E"}:
        return event.pid, event.tid
    return event.pid, event.cat, event.name, str(event.id if event.id2 is None else event.id2)


def _dict(args: Any) -> dict[str, Any]:
    return args if isinstance(args, dict) else {}


def _with_category(args: dict[str, Any], category: str) -> dict[str, Any]:
    return {**args, "category": category} if category and "category" not in args else args


def _nanoseconds(microseconds: float) -> int:
    """Return microseconds as nanoseconds; the whole ones exactly, however large they are."""
    whole = int(microseconds)
    return whole * 1000 + round((microseconds - whole) * 1000)


def _hex(value: Any) -> int:
    if not isinstance(value, str) or not 1 <= len(value) <= 16:
        return 0
    try:
        return int(value, 16)
    except ValueError:
        return 0


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _step(value: Any, name: str) -> int | None:
    """Return the step that a span names; torch's profiler writes it into the name."""
    profiled = _PROFILER_STEP.match(name)
    return int(profiled[1]) if profiled and value is None else whole_step(value)
