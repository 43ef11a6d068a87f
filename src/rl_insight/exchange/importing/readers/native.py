"""RL-Insight's own files: records as JSON Lines, and frames, each a batch (`.rli`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from typing import Any, Final

import msgspec

from rl_insight.errors import SchemaError
from rl_insight.exchange.importing.readers.base import FileContext, FileRows, Reader, number_of
from rl_insight.intake.process import FIRST_HEARTBEAT_S
from rl_insight.metrics import HISTOGRAM
from rl_insight.schema import OPEN, Batch, Loss, Process, decode
from rl_insight.schema.json_values import json_text
from rl_insight.schema.names import copy_of
from rl_insight.schema.records import (
    RECORD_TYPES,
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
from rl_insight.schema.tables import RECORDED, TABLES, Table

_TABLES: Final[dict[type[Record], str]] = {
    SpanRecord: "spans",
    EventRecord: "events",
    LogRecord: "logs",
    SessionSnapshot: "sessions",
}
"""Records that are rows of one table."""
_RANGES: Final = {"i": range(-(2**31), 2**31), "q": range(-(2**63), 2**63), "Q": range(2**64)}
"""The integers that a column can hold, by its code."""
_EARLIEST_S = 1_500_000_000
_SECOND_BITS, _FILE_BITS = 32, 14


class FrameReader(Reader):
    """Reads batches; they keep their process and sequence number, so that a run never stores one twice."""

    numbers_batches = False

    def convert_records(self, records: Iterable[bytes]) -> Iterator[Batch]:
        """Yield the batches of some frames."""
        context = self.context
        for payload in records:
            try:
                batch = decode(payload)
            except SchemaError as error:
                context.counts.note_bad(error)
                continue
            context.counts.records += sum(len(getattr(batch, name)) for name in RECORDED)
            if context.force_run:
                batch.process = msgspec.structs.replace(batch.process, run_id=context.run_id)
            yield context.seal(batch)


class RecordReader(Reader):
    """Reads records; each process of the file becomes a process of the run.

    Rotated files hold parts of one process each. The sequence numbers of a part start at a value derived from the time
    of its first record, so that those of different parts never overlap.
    """

    decoder = msgspec.json.Decoder(reduce(or_, RECORD_TYPES), strict=False)

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._processes: dict[str, Process] = {}
        self._losses: dict[str, dict[tuple[str, str], int]] = {}

    def add(self, rows: Mapping[Any, FileRows], record: Record) -> int:
        """Add a record to the rows of its process."""
        self._note_time(record)
        if isinstance(record, ProcessRecord):
            self._processes[record.process_id] = self._introduced(record)
            return 1
        own = rows[record.process_id]
        table = _TABLES.get(type(record))
        if table is not None:
            own.builder.add_row(table, list(_row(record, TABLES[table])))
        elif isinstance(record, LossRecord):
            self._losses.setdefault(record.process_id, {})[record.kind, record.reason] = record.count
        elif isinstance(record, SampleRecord):
            series = own.series_of(record.metric, record.kind, record.documentation, record.labels)
            value, step = float(record.value), _fit(record.step, "q")
            own.builder.add_sample(series, time_ns=_fit(record.time_ns, "q"), value=value, step=step)
        elif isinstance(record, HistogramRecord):
            own.builder.add_histogram(
                own.series_of(record.metric, HISTOGRAM.name, record.documentation, record.labels),
                time_ns=_fit(record.time_ns, "q"),
                count=_fit(record.count, "Q"),
                total=float(record.sum),
                minimum=float(record.min),
                maximum=float(record.max),
                buckets={_fit(code, "i"): _fit(count, "Q") for code, count in record.buckets.items()},
                step=_fit(record.step, "q"),
            )
        return 1

    def process(self, key: str) -> Process:
        """Return the process of an id in the file."""
        if key not in self._processes:
            unnamed = ProcessRecord(process_id=key, run_id="", host="imported", pid=0)
            self._processes[key] = self._introduced(unnamed)
        return self._processes[key]

    def batch(self, key: str, rows: FileRows) -> Batch:
        """Return the next batch of a process, with its losses."""
        batch = self.context.build(rows.builder, self.process(key))
        lost = self._losses.get(key, {})
        batch.losses += [Loss(kind, reason, count) for (kind, reason), count in lost.items()]
        return batch

    def _note_time(self, record: Record) -> None:
        if self.context.first_sequence:
            return
        time_ns = getattr(record, "time_ns", None) or getattr(record, "start_ns", None)
        if time_ns is None:
            return
        seconds = min(max(time_ns // 1_000_000_000 - _EARLIEST_S, 0), 2**30)
        # Two files may begin in the same second, or with the same span.
        file = number_of(self.context.identity) % 2**_FILE_BITS
        self.context.first_sequence = (seconds << _SECOND_BITS) + (file << (_SECOND_BITS - _FILE_BITS))

    def _introduced(self, record: ProcessRecord) -> Process:
        fields = msgspec.structs.asdict(record)
        fields["process_id"] = copy_of(record.process_id, "imported")
        fields["heartbeat_s"] = FIRST_HEARTBEAT_S
        if self.context.force_run or not record.run_id:
            fields["run_id"] = self.context.run_id
        return Process(**fields)


def _row(record: Any, table: type[Table]) -> Iterator[Any]:
    """Yield a record's fields in the order of a table's columns."""
    trace_id = getattr(record, "trace_id", None) or ""
    parts = {"trace_high": trace_id[:-16], "trace_low": trace_id[-16:]}
    for name, column in table.COLUMNS.items():
        value = parts[name] if name in parts else getattr(record, name)
        if column.kind == "id":
            yield _fit(int(value, 16) if value else 0, column.code)
        elif isinstance(value, dict):
            yield json_text(value)
        elif value is None and column.kind == "duration":
            yield OPEN
        else:
            yield _fit(value, column.code) if isinstance(value, int) else value


def _fit(number: Any, code: str) -> Any:
    """Return a number, or None; one that a column of this code cannot hold is refused."""
    if number is not None and number not in _RANGES[code]:
        raise SchemaError(f"{number} is out of range")
    return number
