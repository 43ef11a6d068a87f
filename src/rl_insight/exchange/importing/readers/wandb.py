"""W&B offline runs (`run-<id>.wandb`): history with steps, system metrics, console output, and the exit code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from rl_insight.exchange.importing.readers.base import FileContext, FileRows, Reader
from rl_insight.otlp.wire import fields
from rl_insight.schema import Process
from rl_insight.schema.json_values import json_text, whole_number

_HISTORY, _STATS, _OUTPUT, _RUN, _EXIT = 2, 7, 13, 17, 18
"""The fields of supported kinds of records."""
_KEY, _NESTED_KEY, _VALUE_JSON = 1, 2, 16
_OWN = frozenset({"_step", "_timestamp", "_runtime", "_wandb"})
"""Added by W&B to each row of history."""
_STDERR = 0


class WandbReader(Reader):
    """Reads records of an offline run; numbers become metrics. Images, tables and text are left out."""

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._process = context.process(role="wandb")

    def add(self, rows: Mapping[Any, FileRows], record: bytes) -> int:
        """Add a record of a supported kind."""
        adders: dict[int, Callable[[FileRows, bytes], int]] = {
            _HISTORY: self._add_history,
            _STATS: self._add_stats,
            _OUTPUT: self._add_output,
            _EXIT: self._add_exit,
        }
        for kind, value in fields(record):
            if isinstance(value, bytes) and kind == _RUN:
                self._process = self._introduced(value)
            elif isinstance(value, bytes) and kind in adders:
                return adders[kind](rows[None], value)
        return 0

    def process(self, key: None) -> Process:
        """Return the process of the run."""
        del key
        return self._process

    def _introduced(self, run: bytes) -> Process:
        """Return the process of a run, which is named after the W&B run unless the user named it."""
        parts = dict(fields(run))
        run_id, project, name, host = (_text(parts.get(number)) for number in (1, 3, 8, 13))
        own = f"{name}-{run_id}" if name and run_id else name or run_id
        return self.context.process(
            role="wandb",
            host=host or "imported",
            project=project,
            experiment_name=name,
            started_ns=_time_ns(parts.get(17)),
            run_id=self.context.run_id if self.context.force_run or not own else own,
        )

    def _add_history(self, rows: FileRows, history: bytes) -> int:
        values = dict(_items(history))
        step, seconds = whole_number(values.get("_step")), values.get("_timestamp")
        if not isinstance(seconds, (int, float)):
            raise TypeError("a row of history has no _timestamp")
        logged = {name: value for name, value in values.items() if name not in _OWN}
        rows.add_gauges(logged, time_ns=self.context.wall_ns(float(seconds)), step=step)
        return 1

    def _add_stats(self, rows: FileRows, stats: bytes) -> int:
        values = {f"system/{name}": value for name, value in _items(stats, within=3)}
        rows.add_gauges(values, time_ns=_time_ns(dict(fields(stats)).get(2)))
        return 1

    def _add_output(self, rows: FileRows, output: bytes) -> int:
        parts = dict(fields(output))
        line = _text(parts.get(3)).rstrip()
        if not line:
            return 0
        is_error = parts.get(1, _STDERR) == _STDERR
        level = logging.WARNING if is_error else logging.INFO
        rows.builder.add_log(
            time_ns=_time_ns(parts.get(2)), level=level, message=line, logger="stderr" if is_error else "stdout"
        )
        return 1

    def _add_exit(self, rows: FileRows, ending: bytes) -> int:
        parts = dict(fields(ending))
        code, runtime = parts.get(1, 0), parts.get(2, 0)
        seconds = runtime if isinstance(runtime, int) else 0
        rows.builder.add_event(
            time_ns=self._process.started_ns + seconds * 1_000_000_000,
            name="exit",
            attributes=json_text({"exit_code": code}),
        )
        return 1


def _items(message: bytes, within: int = 1) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a row; nested names are joined as in the W&B mirror."""
    for number, raw in fields(message):
        if number != within or not isinstance(raw, bytes):
            continue
        names, value = [], b""
        for field, part in fields(raw):
            if field in {_KEY, _NESTED_KEY} and isinstance(part, bytes):
                names.append(part.decode())
            elif field == _VALUE_JSON and isinstance(part, bytes):
                value = part
        yield "/".join(names), _value(value)


def _value(raw: bytes) -> Any:
    """Return a JSON value; W&B also writes numbers that JSON lacks."""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = raw.decode("utf-8", "replace")
    return float(found) if found in ("NaN", "Infinity", "-Infinity") else found


def _time_ns(timestamp: int | bytes | None) -> int:
    """Return a protobuf `Timestamp` in nanoseconds."""
    if not isinstance(timestamp, bytes):
        return 0
    parts = dict(fields(timestamp))
    seconds, nanos = parts.get(1, 0), parts.get(2, 0)
    return seconds * 1_000_000_000 + nanos if isinstance(seconds, int) and isinstance(nanos, int) else 0


def _text(value: int | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
