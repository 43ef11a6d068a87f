"""The tables of a batch, each declared once.

Each field is a column, and its type defines the wire and storage formats: see `Column`. The wire format, the row order
of `BatchBuilder`, the records and, in the store, the Arrow columns, DDL and SELECT lists are derived from these
classes. `docs/events.md` describes every column.
"""

from __future__ import annotations

import sys
from array import array
from collections import namedtuple
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Final, NamedTuple, get_type_hints

import msgspec

NO_STEP: Final = -(2**63)
STEP_LIMIT: Final = 2**56
"""Steps are smaller than this, in both directions: receivers refuse rows with others."""
LAST_TIME_NS: Final = 2**62
"""The end of representable time, in the year 2116; later times are clamped to it."""
OPEN: Final = -1
"""The duration of a span that has not ended."""


class Column(NamedTuple):
    """A kind of column."""

    kind: str
    code: str
    """The wire type, as a type code of `array`: `I` uint32, `i` int32, `q` int64, `Q` uint64, `d` float64."""
    store: str
    """The type in the store."""
    optional: bool = False
    """Whether a value may be absent."""

    @property
    def absent(self) -> int:
        """The number that means absent."""
        return NO_STEP if self.kind == "step" else 0


_LONG = "VARCHAR USING COMPRESSION zstd"
Id = Annotated[bytes, Column("id", "Q", "UBIGINT")]
OptionalId = Annotated[bytes, Column("id", "Q", "UBIGINT", optional=True)]
Time = Annotated[bytes, Column("time", "q", "BIGINT")]
"""Nanoseconds since 1970, on the process's clock."""
Duration = Annotated[bytes, Column("duration", "q", "BIGINT")]
"""Nanoseconds; `OPEN` for an open span."""
Step = Annotated[bytes, Column("step", "q", "BIGINT", optional=True)]
Int = Annotated[bytes, Column("number", "q", "BIGINT")]
Int32 = Annotated[bytes, Column("number", "i", "INTEGER")]
Unsigned = Annotated[bytes, Column("number", "Q", "UBIGINT")]
Float = Annotated[bytes, Column("number", "d", "DOUBLE")]
Text = Annotated[bytes, Column("text", "I", "VARCHAR")]
"""A 1-based position in the batch's `strings`; 0 means absent."""
OptionalText = Annotated[bytes, Column("text", "I", "VARCHAR", optional=True)]
LongText = Annotated[bytes, Column("text", "I", _LONG)]
OptionalLongText = Annotated[bytes, Column("text", "I", _LONG, optional=True)]
Name = Annotated[bytes, Column("name", "I", "INTEGER")]
"""Text that the store deduplicates in `names`."""
Lane = Annotated[bytes, Column("lane", "I", "INTEGER", optional=True)]
"""Text that the store deduplicates in `lanes`."""
Index = Annotated[bytes, Column("index", "I", "INTEGER")]
"""A position in another table of the batch, or a number of its rows."""

TEXT_KINDS: Final = frozenset({"text", "name", "lane"})
"""Columns of positions in `strings`."""


class Table(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Base of the tables: every field is a column, as a raw little-endian array."""

    COLUMNS: ClassVar[dict[str, Column]] = {}
    TYPES: ClassVar[dict[str, str]] = {}
    FIRST: ClassVar[tuple[str, int]] = ("", 1)
    """The first column and its item size in bytes."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        hints = get_type_hints(cls, include_extras=True)
        declared = {name: getattr(hints[name], "__metadata__", ()) for name in cls.__annotations__}
        cls.COLUMNS = {name: metadata[0] for name, metadata in declared.items() if metadata}
        cls.TYPES = {name: column.code for name, column in cls.COLUMNS.items()}
        first, code = next(iter(cls.TYPES.items()))
        cls.FIRST = (first, array(code).itemsize)

    def column(self, name: str) -> memoryview:
        """Return a column as numbers, without copying it.

        >>> Samples(value=array("d", [1.5]).tobytes()).column("value").tolist()
        [1.5]
        """
        view: memoryview = memoryview(getattr(self, name)).cast(self.TYPES[name])  # type: ignore[call-overload]
        return view

    def rows(self) -> Iterator[Any]:
        """Iterate over the rows: numbers in column order, as named tuples."""
        columns = (self.column(name).tolist() for name in self.TYPES)
        return map(_row_type(type(self))._make, zip(*columns, strict=True))

    def __len__(self) -> int:
        name, size = self.FIRST
        return len(getattr(self, name)) // size

    @classmethod
    def from_values(cls, values: list[Any]) -> Any:
        """Build the table from a flat list of row values, in column order."""
        if not values:
            return cls()
        width = len(cls.TYPES)
        return cls(**{name: pack(code, values[at::width]) for at, (name, code) in enumerate(cls.TYPES.items())})

    @classmethod
    def from_columns(cls, count: int, **columns: bytes) -> Any:
        """Build the table from raw columns of `count` rows; optional ones that are not given are absent."""
        absent = {
            name: pack(column.code, [column.absent]) * count
            for name, column in cls.COLUMNS.items()
            if column.optional and name not in columns
        }
        if missing := cls.COLUMNS.keys() - columns.keys() - absent.keys():
            raise TypeError(f"{cls.__name__.lower()}: missing {sorted(missing)}.")
        return cls(**columns, **absent)

    def followed_by(self, columns: Iterable[array[Any]]) -> Any:
        """Return the table with more rows, given as columns."""
        names = zip(self.TYPES, columns, strict=True)
        return type(self)(**{name: getattr(self, name) + raw(column) for name, column in names})


@cache
def _row_type(table: type[Table]) -> Any:
    return namedtuple(f"{table.__name__}Row", table.COLUMNS)  # noqa: PYI024  # from the declaration


class Spans(Table):
    """Intervals. An open span has duration -1; it is sent again with the same id when it ends."""

    span_id: Id = b""
    trace_high: Id = b""
    trace_low: Id = b""
    parent_id: OptionalId = b""
    name: Name = b""
    start_ns: Time = b""
    duration_ns: Duration = b""
    segment: Text = b""
    lane: Lane = b""
    status: Text = b""
    error: OptionalText = b""
    step: Step = b""
    session_id: OptionalText = b""
    attributes: OptionalLongText = b""


class Events(Table):
    """Instants."""

    time_ns: Time = b""
    name: Text = b""
    span_id: OptionalId = b""
    trace_high: OptionalId = b""
    trace_low: OptionalId = b""
    lane: Lane = b""
    step: Step = b""
    session_id: OptionalText = b""
    attributes: OptionalLongText = b""


class Logs(Table):
    """Log lines; `level` is a number as in the `logging` module."""

    time_ns: Time = b""
    level: Int = b""
    logger: OptionalText = b""
    message: LongText = b""
    span_id: OptionalId = b""
    trace_high: OptionalId = b""
    trace_low: OptionalId = b""
    lane: Lane = b""
    step: Step = b""
    session_id: OptionalText = b""
    attributes: OptionalLongText = b""


class Sessions(Table):
    """Session snapshots from the owning process; the latest snapshot of a session wins."""

    session_id: Text = b""
    task_id: OptionalText = b""
    status: Text = b""
    time_ns: Time = b""
    record: OptionalText = b""


class Series(Table):
    """The metrics that this batch's samples and histograms belong to, by position."""

    name: Text = b""
    kind: Text = b""
    documentation: Text = b""
    labels: Text = b""


class Samples(Table):
    """Gauge values, and counter totals since the process started."""

    series: Index = b""
    time_ns: Time = b""
    value: Float = b""
    step: Step = b""


class Histograms(Table):
    """Distributions since the process started; a row owns the next `buckets` entries of the `Buckets` table."""

    series: Index = b""
    time_ns: Time = b""
    step: Step = b""
    count: Unsigned = b""
    sum: Float = b""
    min: Float = b""
    max: Float = b""
    buckets: Index = b""


class Buckets(Table):
    """Histogram buckets (see `schema.histogram`), in the order of the `Histograms` rows."""

    code: Int32 = b""
    count: Unsigned = b""


TABLES: Final[dict[str, type[Table]]] = {table.__name__.lower(): table for table in Table.__subclasses__()}
"""By the field of a batch, in the order of their definition."""
RECORDED: Final = ("spans", "events", "logs", "sessions", "samples", "histograms")
"""Tables of recorded rows; the other tables describe them."""

_FIRST_COLUMNS: Final = {name: attrgetter(f"{name}.{table.FIRST[0]}") for name, table in TABLES.items()}


def row_counts(batches: Sequence[Any], name: str) -> list[int]:
    """Return the number of rows of a table in each batch, three times as fast as `len` of each table."""
    size = TABLES[name].FIRST[1]
    return [len(column) // size for column in map(_FIRST_COLUMNS[name], batches)]


def largest(steps: bytes) -> int:
    """Return the highest step in a raw column, or `NO_STEP`.

    >>> largest(pack("q", [3, NO_STEP, 7]))
    7
    """
    if steps == steps[:8] * (len(steps) // 8):  # the usual case in small batches
        steps = steps[:8]
    return max(memoryview(steps).cast("q").tolist(), default=NO_STEP)


def seconds_of(time_ns: int) -> float:
    """Return nanoseconds as seconds, rounded to microseconds: a double is accurate to 0.25 µs.

    >>> seconds_of(1767225600750000000)
    1767225600.75
    """
    return round(time_ns / 1e9, 6)


def pack(code: str, values: Iterable[Any]) -> bytes:
    """Return numbers as a raw little-endian column."""
    return raw(array(code, values))


def raw(column: array[Any]) -> bytes:
    """Return a column of numbers as little-endian bytes; swaps it in place on a big-endian machine."""
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()
