"""Collects rows and builds batches."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from rl_insight.schema.batch import VERSION, Batch, Loss, Process
from rl_insight.schema.json_values import utf8_form
from rl_insight.schema.names import DURATION_SEGMENT
from rl_insight.schema.tables import NO_STEP, RECORDED, TABLES, TEXT_KINDS, Series, Spans

_SERIES_WIDTH = len(Series.TYPES)
_VALUE_BYTES = 8
_WRITTEN = {
    table: [
        (name, column.kind in TEXT_KINDS, column.absent if column.optional else None)
        for name, column in declared.COLUMNS.items()
    ]
    for table, declared in TABLES.items()
}
"""Name, whether it is text, and what an absent value becomes (None if it must be given), for the columns of a table."""


class TextTable(dict["str | None", int]):
    """String to 1-based position in a batch; looking up a new string adds it. None is at 0.

    Known strings are found without calling a Python function, so entire columns can be looked up with `map`.
    """

    __slots__ = ("size", "strings")

    def __init__(self) -> None:
        super().__init__({None: 0})
        self.strings: list[str] = []
        self.size = 0
        """Total characters."""

    def __missing__(self, value: str) -> int:
        self.strings.append(_encodable(value))
        self.size += len(value)
        position = self[value] = len(self.strings)
        return position

    def of_column(self, column: Sequence[str | None]) -> list[int]:
        """Return the positions of many strings. Faster than lookups if most of them are new, or all are the same."""
        if column[0] == column[-1] and column.count(column[0]) == len(column):
            return [self[column[0]]] * len(column)
        if new := [text for text in dict.fromkeys(column) if text is not None and text not in self]:
            self.update(zip(new, count(len(self.strings) + 1)))  # count() is infinite
            self.strings += new if all(map(str.isascii, new)) else map(_encodable, new)
            self.size += sum(map(len, new))
        return list(map(self.__getitem__, column))


class BatchBuilder:
    """Collects the rows of one batch.

    The lists are public: a caller with many rows extends them directly, in column order. They hold values rather than
    row tuples, which the garbage collector would have to count and traverse.

    >>> builder = BatchBuilder()
    >>> series = builder.add_series("reward_mean", "gauge", "", '{"worker":"0"}')
    >>> builder.add_sample(series, time_ns=1, value=1.5)
    >>> batch = builder.build(Process(process_id="p", run_id="r", host="h", pid=1), sequence=1, sent_ns=2)
    >>> len(batch.samples)
    1
    """

    __slots__ = ("_span_columns", "text", "texts", *TABLES)

    def __init__(self) -> None:
        self.texts = TextTable()
        self.text = self.texts.__getitem__
        """Returns the position of a string, adding it on first use; 0 for None."""
        self.spans: list[Any] = []
        self._span_columns = [array(code) for code in Spans.TYPES.values()]
        """Spans added as columns."""
        self.events: list[Any] = []
        self.logs: list[Any] = []
        self.sessions: list[Any] = []
        self.series: list[Any] = []
        self.samples: list[Any] = []
        self.histograms: list[Any] = []
        self.buckets: list[int] = []

    def add_row(self, table: str, values: Iterable[Any]) -> None:
        """Add one row to any table, in column order; strings are passed as such, and None means absent."""
        self._add(table, dict(zip(TABLES[table].COLUMNS, values, strict=True)))

    def _add(self, table: str, values: dict[str, Any]) -> None:
        """Add one row by column name; optional columns may be left out."""
        given, text, row = values.get, self.text, []
        for name, is_text, absent in _WRITTEN[table]:
            value = given(name)
            row.append(absent if value is None else text(value) if is_text else value)
        columns = TABLES[table].COLUMNS
        if None in row or not values.keys() <= columns.keys():
            missing = [name for name, value in zip(columns, row, strict=True) if value is None]
            raise TypeError(f"{table}: missing {missing}, unknown {sorted(values.keys() - columns.keys())}.")
        getattr(self, table).extend(row)

    def add_span(
        self, *, trace: tuple[int, int], segment: str = DURATION_SEGMENT, status: str = "ok", **columns: Any
    ) -> None:
        """Add one span; `attributes` is a JSON object as text."""
        self._add("spans", {**_trace(trace), "segment": segment, "status": status, **columns})

    def add_spans(self, **columns: Sequence[Any]) -> None:
        """Add many spans as columns of raw numbers; all of them or none. Optional columns may be left out.

        Three times as fast as adding rows, with an eighth of their memory until the batch is built.
        """
        if not columns.keys() <= Spans.COLUMNS.keys():
            raise TypeError(f"spans: unknown {sorted(columns.keys() - Spans.COLUMNS.keys())}.")
        count = len(columns["span_id"])
        added = [
            _packed(column.code, columns[name])
            if name in columns or not column.optional
            else struct.pack(column.code, column.absent) * count
            for name, column in Spans.COLUMNS.items()
        ]
        for column, more in zip(self._span_columns, added, strict=True):
            column.frombytes(more)

    def add_event(self, *, trace: tuple[int, int] = (0, 0), **columns: Any) -> None:
        """Add one event; `attributes` is a JSON object as text."""
        self._add("events", {**_trace(trace), **columns})

    def add_log(self, *, trace: tuple[int, int] = (0, 0), **columns: Any) -> None:
        """Add one log line; `attributes` is a JSON object as text."""
        self._add("logs", {**_trace(trace), **columns})

    def add_session(self, **columns: Any) -> None:
        """Add a session snapshot; `record` is a JSON object as text, see `rl_insight.sessions.records`."""
        self._add("sessions", columns)

    def add_series(self, name: str, kind: str, documentation: str, labels: str) -> int:
        """Add a metric with its labels, a JSON object as text; return its position for samples."""
        self.series.extend(map(self.text, (name, kind, documentation, labels)))
        return len(self.series) // _SERIES_WIDTH - 1

    def add_sample(self, series: int, *, time_ns: int, value: float, step: int | None = None) -> None:
        """Add a gauge value or a counter total."""
        self.samples.extend((series, time_ns, value, NO_STEP if step is None else step))

    def add_histogram(
        self,
        series: int,
        *,
        time_ns: int,
        count: int,
        total: float,
        minimum: float,
        maximum: float,
        buckets: Mapping[int, int],
        step: int | None = None,
    ) -> None:
        """Add a distribution with its buckets, ``{code: count}``."""
        number = NO_STEP if step is None else step
        self.histograms.extend((series, time_ns, number, count, total, minimum, maximum, len(buckets)))
        for code in sorted(buckets):
            self.buckets.extend((code, buckets[code]))

    def build(
        self,
        process: Process,
        *,
        sequence: int,
        sent_ns: int,
        losses: Iterable[Loss] = (),
        final: bool = False,
    ) -> Batch:
        """Return the batch."""
        tables = {name: table.from_values(getattr(self, name)) for name, table in TABLES.items()}
        if self.packed_spans:
            tables["spans"] = tables["spans"].followed_by(self._span_columns)
        return Batch(
            version=VERSION,
            process=process,
            sequence=sequence,
            sent_ns=sent_ns,
            final=final,
            strings=self.texts.strings,
            losses=list(losses),
            **tables,
        )

    @property
    def value_count(self) -> int:
        """Number of values to pack, which determines the cost of building the batch."""
        return sum(len(getattr(self, name)) for name in TABLES)

    @property
    def packed_spans(self) -> int:
        """Number of spans added as columns, which cost almost nothing to pack."""
        return len(self._span_columns[0])

    @property
    def size_bytes(self) -> int:
        """Approximate size of the batch, so that callers can split it in time."""
        values = self.value_count + len(self._span_columns) * self.packed_spans
        return values * _VALUE_BYTES + self.texts.size

    def __len__(self) -> int:
        rows = sum(len(getattr(self, name)) // len(TABLES[name].TYPES) for name in RECORDED)
        return rows + self.packed_spans


def _trace(trace: tuple[int, int]) -> dict[str, int]:
    return {"trace_high": trace[0], "trace_low": trace[1]}


def _packed(code: str, column: Sequence[Any]) -> bytes:
    """Return numbers in native byte order. `struct` is faster than `array`, and most columns hold one value."""
    first = column[0]
    if first == column[-1] and column.count(first) == len(column):
        return struct.pack(code, first) * len(column)
    return struct.pack(f"{len(column)}{code}", *column)


def _encodable(value: str) -> str:
    """Return a string that UTF-8 can represent: lone surrogates are escaped."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return str(utf8_form(value))
    return value
