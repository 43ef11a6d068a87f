"""RL-Insight's own records as JSON Lines; frames are read by `rl_insight.exchange.importing._frames`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rl_insight.errors import SchemaError
from rl_insight.exchange.importing.readers.base import (
    HEARTBEAT_S,
    FileContext,
    Reader,
    decoded_lines,
    json_text,
    number_of,
)
from rl_insight.exchange.importing.readers.rows import FileRows
from rl_insight.schema import OPEN, Batch, Loss, Process
from rl_insight.schema.records import (
    EventRecord,
    HistogramRecord,
    LogRecord,
    LossRecord,
    ProcessRecord,
    Record,
    SampleRecord,
    SessionSnapshot,
    SpanRecord,
)
from rl_insight.schema.tables import TABLES, Table

AnyRecord = (
    SpanRecord | EventRecord | LogRecord | SessionSnapshot | SampleRecord | HistogramRecord | LossRecord | ProcessRecord
)
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(AnyRecord, strict=False)

_TABLES: dict[type[Record], str] = {
    SpanRecord: "spans",
    EventRecord: "events",
    LogRecord: "logs",
    SessionSnapshot: "sessions",
}
"""Records that are rows of one table."""

_EARLIEST_S = 1_500_000_000
_SECOND_BITS, _FILE_BITS = 32, 14


class RecordReader(Reader):
    """Reads records; each process of the file becomes a process of the run.

    Files that were rotated hold parts of one process each. Where the counting of batches begins follows from the time
    of a file's first record, so that the parts stand one after the other and never meet.
    """

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._processes: dict[str, Process] = {}
        self._losses: dict[str, dict[tuple[str, str], int]] = {}

    def convert(self, data: bytes) -> Iterator[Batch]:
        """Yield a batch for each process that the lines tell about."""
        builders: dict[str, _Rows] = {}
        counts = self.context.counts
        for record in decoded_lines(data, _decoder, counts):
            self._note_time(record)
            if isinstance(record, ProcessRecord):
                self._processes[record.process_id] = self._introduced(record)
                continue
            rows = builders.setdefault(record.process_id, _Rows())
            try:
                self._add(rows, record)
            except (ValueError, OverflowError) as error:
                counts.records -= 1
                counts.note_bad(f"{error} in a {type(record).__name__}")
        for process_id, rows in builders.items():
            batch = self.context.build(rows.builder, self._process(process_id))
            told = self._losses.get(process_id, {})
            batch.losses += [Loss(kind, reason, count) for (kind, reason), count in told.items()]
            yield batch

    def _note_time(self, record: Record) -> None:
        if self.context.first_sequence:
            return
        time_ns = getattr(record, "time_ns", None) or getattr(record, "start_ns", None)
        if time_ns is None:
            return
        seconds = min(max(time_ns // 1_000_000_000 - _EARLIEST_S, 0), 2**30)
        # Two files may begin in one second, or with the same span.
        file = number_of(self.context.identity) % 2**_FILE_BITS
        self.context.first_sequence = (seconds << _SECOND_BITS) + (file << (_SECOND_BITS - _FILE_BITS))

    def _introduced(self, record: ProcessRecord) -> Process:
        fields = msgspec.structs.asdict(record)
        fields["process_id"] = self._name(record.process_id)
        fields["heartbeat_s"] = HEARTBEAT_S
        if self.context.force_run or not record.run_id:
            fields["run_id"] = self.context.run_id
        return Process(**fields)

    def _process(self, process_id: str) -> Process:
        known = self._processes.get(process_id)
        if known is None:
            known = Process(
                process_id=self._name(process_id),
                run_id=self.context.run_id,
                host="imported",
                pid=0,
                heartbeat_s=HEARTBEAT_S,
            )
            self._processes[process_id] = known
        return known

    def _name(self, process_id: str) -> str:
        """Return an id apart from that of the process itself, whose batches have other sequence numbers."""
        return f"{process_id.partition('@')[0]}@imported"

    def _add(self, rows: _Rows, record: Record) -> None:
        if isinstance(record, LossRecord):
            self._losses.setdefault(record.process_id, {})[record.kind, record.reason] = record.count
        else:
            rows.add(record)


class _Rows(FileRows):
    """Writes records into a builder."""

    def add(self, record: Record) -> None:
        table = _TABLES.get(type(record))
        if table is not None:
            self.builder.add_row(table, list(_row(record, TABLES[table])))
        elif isinstance(record, SampleRecord):
            series = self.series_of(record.metric, record.kind, record.documentation, record.labels)
            value = float(record.value)
            self.builder.add_sample(series, time_ns=_int64(record.time_ns), value=value, step=_step(record.step))
        elif isinstance(record, HistogramRecord):
            self.builder.add_histogram(
                self.series_of(record.metric, "histogram", record.documentation, record.labels),
                time_ns=_int64(record.time_ns),
                count=_unsigned(record.count),
                total=float(record.sum),
                minimum=float(record.min),
                maximum=float(record.max),
                buckets={_int32(code): _unsigned(count) for code, count in record.buckets.items()},
                step=_step(record.step),
            )


def _row(record: Any, table: type[Table]) -> Iterator[Any]:
    """Yield a record's fields in the order of a table's columns."""
    trace_id = getattr(record, "trace_id", None) or ""
    for name, column in table.COLUMNS.items():
        if name in {"trace_high", "trace_low"}:
            yield _id(trace_id[:-16] if name == "trace_high" else trace_id[-16:])
            continue
        value = getattr(record, name)
        if column.kind == "id":
            yield _id(value)
        elif isinstance(value, dict):
            yield json_text(value)
        elif value is None:
            yield OPEN if column.kind == "duration" else None
        else:
            yield _int64(value) if isinstance(value, int) else value


def _id(text: str | None) -> int:
    return _unsigned(int(text, 16)) if text else 0


def _int64(number: int) -> int:
    return _within(number, -(2**63), 2**63)


def _unsigned(number: int) -> int:
    return _within(number, 0, 2**64)


def _int32(number: int) -> int:
    return _within(number, -(2**31), 2**31)


def _step(step: int | None) -> int | None:
    return None if step is None else _int64(step)


def _within(number: int, low: int, high: int) -> int:
    if not low <= number < high:
        raise SchemaError(f"{number} is out of range")
    return number
