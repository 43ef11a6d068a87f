"""Chrome trace events, as `chrome://tracing`, Perfetto, torch's profiler, viztracer and AReaL's perf tracer write them.

AReaL writes one event per line; the others write one JSON document, which `importing._chrome_files` splits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

import msgspec

from rl_insight.exchange.importing.readers.base import WALL_CLOCK_S, FileContext, FileRows, Reader, number_of
from rl_insight.schema import Process
from rl_insight.schema.json_values import json_text, whole_number
from rl_insight.schema.names import DURATION_SEGMENT
from rl_insight.schema.tables import LAST_TIME_NS

_MAX_COUNTER_PARTS = 64
_OWN_ARGS = frozenset({"span_id", "parent_id", "trace_id", "step", "session_id", "status", "error", "segment", "lane"})
"""Keys of `args` that our own export writes, or that have a dedicated column."""


_PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)$")


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


Place = tuple[int | str, int | str]


class Names:
    """Names of processes and threads, from metadata events, which may be anywhere in a file."""

    def __init__(self) -> None:
        self.processes: dict[int | str, str] = {}
        self.threads: dict[Place, str] = {}

    def note(self, event: ChromeEvent) -> None:
        """Record the name in a metadata event."""
        if event.ph != "M":
            return
        name = event.args.get("name") if isinstance(event.args, dict) else None
        if not isinstance(name, str) or not name:
            return
        if event.name == "process_name":
            self.processes[event.pid] = name
        elif event.name == "thread_name":
            self.threads[event.pid, event.tid] = name


class _Begun(NamedTuple):
    """A span whose start is known."""

    span_id: int
    start_ns: int
    parent_id: int
    name: str
    args: dict[str, Any]


class ChromeReader(Reader):
    """Reads trace events; one process per pid, one lane per thread."""

    decoder = msgspec.json.Decoder(ChromeEvent)

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self.names = Names()
        self.base_ns = 0
        """Added to all times, in documents that specify it."""
        self._processes: dict[int | str, Process] = {}
        self._open: dict[Any, list[_Begun]] = {}
        self._events = 0

    def add(self, rows: Mapping[Any, FileRows], record: ChromeEvent) -> int:
        """Add an event, or note the name that it gives to a process or thread."""
        self._events += 1
        if record.ph == "M":
            self.names.note(record)
        else:
            self._add(rows[record.pid], record)
        return 1

    def process(self, key: int | str) -> Process:
        """Return the process of a pid, named as it was when its first events were read."""
        if key not in self._processes:
            number = key if isinstance(key, int) and 0 <= key < 2**31 else 0
            role = self.names.processes.get(key, "")
            rank = key if isinstance(key, int) and 0 <= key < 2**16 else None
            where = {"host": key} if isinstance(key, str) and key else {}  # Ray's timelines have nodes there
            self._processes[key] = self.context.process(str(key), pid=number, role=role or "trace", rank=rank, **where)
        return self._processes[key]

    def _add(self, rows: FileRows, event: ChromeEvent) -> None:
        kind = event.ph
        if kind == "X":
            args = _dict(event.args)
            duration = max(0, min(_nanoseconds(event.dur or 0.0), LAST_TIME_NS))
            parent = _hex(args.get("parent_id"))
            span = _Begun(self._span_id(args), self._time(event.ts), parent, event.name, args)
            self._write(rows, event, span, duration)
        elif kind in {"B", "b", "S"}:
            self._begin(rows, event)
        elif kind in {"E", "e", "F"}:
            self._end(rows, event)
        elif kind in {"i", "I", "R", "n"}:
            rows.builder.add_event(
                time_ns=self._time(event.ts),
                name=event.name,
                lane=self._lane(event),
                attributes=json_text(_with_category(_dict(event.args), event.cat)),
            )
        elif kind == "C":
            values = {key: value for key, value in _dict(event.args).items() if isinstance(value, (int, float))}
            for part, value in list(values.items())[:_MAX_COUNTER_PARTS]:
                labels = {} if len(values) == 1 else {"part": part}
                rows.add_gauges({event.name: value}, time_ns=self._time(event.ts), labels=labels)

    def _time(self, microseconds: float) -> int:
        if not isfinite(microseconds):
            raise ValueError("a time is not a number")
        time_ns = _nanoseconds(microseconds) + self.base_ns
        if time_ns < WALL_CLOCK_S * 1e9:
            time_ns += self.context.origin_ns
        return max(0, min(time_ns, LAST_TIME_NS))

    def _lane(self, event: ChromeEvent) -> str:
        name = self.names.threads.get((event.pid, event.tid))
        return name or (f"thread {event.tid}" if isinstance(event.tid, int) else event.tid)

    def _begin(self, rows: FileRows, event: ChromeEvent) -> None:
        args = _dict(event.args)
        stack = self._open.setdefault(_key(event), [])
        parent = stack[-1].span_id if stack and event.ph == "B" else 0
        begun = _Begun(self._span_id(args), self._time(event.ts), parent, event.name, args)
        stack.append(begun)
        self._write(rows, event, begun, -1)

    def _end(self, rows: FileRows, event: ChromeEvent) -> None:
        key = _key(event)
        stack = self._open.get(key)
        if not stack:
            raise ValueError("an end without a beginning")
        begun = stack.pop()
        if not stack:
            del self._open[key]
        duration = max(self._time(event.ts) - begun.start_ns, 0)
        self._write(rows, event, begun._replace(args={**begun.args, **_dict(event.args)}), duration)

    def _span_id(self, args: dict[str, Any]) -> int:
        return _hex(args.get("span_id")) or number_of(self.context.identity, self._events)

    def _write(self, rows: FileRows, event: ChromeEvent, begun: _Begun, duration: int) -> None:
        span_id, start_ns, parent, name, args = begun
        others = {key: value for key, value in args.items() if key not in _OWN_ARGS} if args else args
        trace = args.get("trace_id")
        high, low = (trace[:16], trace[16:]) if isinstance(trace, str) and len(trace) == 32 else ("", "")
        rows.builder.add_span(
            span_id=span_id,
            trace=(_hex(high), _hex(low)) if low else (0, span_id),
            parent_id=parent,
            name=name,
            start_ns=start_ns,
            duration_ns=duration,
            segment=_text(args.get("segment")) or DURATION_SEGMENT,
            lane=_text(args.get("lane")) if "span_id" in args else self._lane(event),
            status="open" if duration < 0 else _text(args.get("status")) or "ok",
            error=_text(args.get("error")),
            step=_step(args.get("step"), name),
            session_id=_text(args.get("session_id")),
            attributes=json_text(_with_category(others, event.cat)),
        )


def _key(event: ChromeEvent) -> Any:
    """Return the key that a start and its end share: the thread, or the id of asynchronous events."""
    if event.ph in {"B", "E"}:
        return event.pid, event.tid
    return event.pid, event.cat, event.name, str(event.id if event.id2 is None else event.id2)


def _dict(args: Any) -> dict[str, Any]:
    return args if isinstance(args, dict) else {}


def _with_category(args: dict[str, Any], category: str) -> dict[str, Any]:
    return {**args, "category": category} if category and "category" not in args else args


def _nanoseconds(microseconds: float) -> int:
    """Return microseconds as nanoseconds; exact for integers of any size."""
    integer = int(microseconds)
    return integer * 1000 + round((microseconds - integer) * 1000)


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
    """Return the step of a span; torch's profiler writes it in the name."""
    profiled = _PROFILER_STEP.match(name)
    return whole_number(profiled[1] if profiled and value is None else value)
