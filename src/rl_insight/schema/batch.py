"""The batch: the unit a process sends, in columns.

A batch is one msgpack map of tables (see `schema.tables`). Strings are deduplicated in `strings`, and every column is a
raw little-endian array that is read without decoding each row. `schema.records` has the same content as rows.

Compatibility: a minor version only adds fields with defaults, and readers ignore unknown fields. Anything else is a new
major version, which a reader rejects with a message that names both.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any, Final

import msgspec

from rl_insight.errors import SchemaError, TooLargeError, UnsupportedVersionError
from rl_insight.schema.json_values import utf8_form
from rl_insight.schema.tables import (
    TABLES,
    TEXT_KINDS,
    Buckets,
    Events,
    Histograms,
    Logs,
    Samples,
    Series,
    Sessions,
    Spans,
    Table,
)

VERSION: Final = (1, 0)
MAX_STRINGS: Final = 1_000_000
MAX_ENTRIES: Final = 10_000
"""Labels, and losses, per batch."""


class Process(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The process that recorded a batch; it belongs to one run."""

    process_id: str
    """Unique per process instance, even after `fork` or when a pid is reused."""
    run_id: str
    host: str
    pid: int
    project: str = ""
    experiment_name: str = ""
    role: str = ""
    rank: int | None = None
    labels: dict[str, str] = {}
    started_ns: int = 0
    heartbeat_s: float = 5.0
    """The longest silence of a healthy process; after a few of these without a batch it counts as dead."""


class Loss(msgspec.Struct, frozen=True):
    """What a process dropped since it started, for one kind and reason."""

    kind: str
    reason: str
    count: int


class Tables(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The tables of a batch or a bundle, and the strings that their columns refer to."""

    strings: list[str] = []
    spans: Spans = msgspec.field(default_factory=Spans)
    events: Events = msgspec.field(default_factory=Events)
    logs: Logs = msgspec.field(default_factory=Logs)
    sessions: Sessions = msgspec.field(default_factory=Sessions)
    series: Series = msgspec.field(default_factory=Series)
    samples: Samples = msgspec.field(default_factory=Samples)
    histograms: Histograms = msgspec.field(default_factory=Histograms)
    buckets: Buckets = msgspec.field(default_factory=Buckets)


class _TablesAndLosses(Tables, omit_defaults=True, kw_only=True):
    """Places the losses after the tables on the wire."""

    losses: list[Loss] = []


class Batch(_TablesAndLosses, omit_defaults=True):
    """Everything a process recorded in one flush."""

    version: tuple[int, int]
    process: Process
    sequence: int
    """Number of the batch within its process, from 1; receivers accept each (process, sequence) once."""
    sent_ns: int
    """When the batch was made, on the process's clock; receivers estimate the clock offset from it. 0 in a batch read
    from a file, whose arrival time says nothing about the process."""
    final: bool = False
    """True in the last batch of a process that shut down cleanly."""

    def text(self, position: int) -> str | None:
        """Return the string at a position from a text column; None for 0."""
        return self.strings[position - 1] if position else None


class _ProcessHeader(msgspec.Struct):
    labels: msgspec.Raw = msgspec.Raw()


class SenderHeader(msgspec.Struct):
    """The parts of a batch, or of a bundle's member, whose entries are counted before they are decoded.

    An entry takes a byte on the wire and up to 100 in memory.
    """

    process: msgspec.Raw = msgspec.Raw(b"\x80")
    losses: msgspec.Raw = msgspec.Raw()

    @property
    def labels(self) -> msgspec.Raw:
        """The labels of the process."""
        return _process_decoder.decode(self.process).labels


class _Header(SenderHeader, kw_only=True):
    version: tuple[int, int]
    strings: msgspec.Raw = msgspec.Raw()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Batch)
_header_decoder = msgspec.msgpack.Decoder(_Header)
_process_decoder = msgspec.msgpack.Decoder(_ProcessHeader)


def encode(batch: Batch) -> bytes:
    """Encode a batch; lone surrogates, which UTF-8 cannot represent, are escaped."""
    try:
        return _encoder.encode(batch)
    except UnicodeEncodeError:
        return _encoder.encode(utf8_form(msgspec.to_builtins(batch, builtin_types=(bytes,))))


def decode(payload: bytes) -> Batch:
    """Decode and validate a batch.

    Raises:
        UnsupportedVersionError: the batch has another major version.
        TooLargeError: it has too many strings, losses or labels.
        SchemaError: the bytes are not a batch, or its columns are inconsistent.
    """
    try:
        header = _header_decoder.decode(payload)
        check_version(header.version)
        check_count("strings", header.strings, MAX_STRINGS)
        check_count("losses", header.losses, MAX_ENTRIES)
        check_count("labels", header.labels, MAX_ENTRIES)
        batch = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SchemaError(f"not a batch: {str(error).rstrip('.')}.") from error
    check_columns(batch, last_series=len(batch.series) - 1)
    check_buckets(batch)
    return batch


def check_version(version: tuple[int, int]) -> None:
    """Reject another major version."""
    if version[0] != VERSION[0]:
        raise UnsupportedVersionError(
            f"schema version {version[0]}.x is not supported: this end reads version {VERSION[0]}.x. "
            "Install the same major version of rl-insight on both ends."
        )


def check_count(name: str, raw: msgspec.Raw, limit: int) -> None:
    """Reject a msgpack array or map whose header claims too many entries."""
    count = count_of(raw)
    if count > limit:
        raise TooLargeError(f"the batch has {count} {name}, but the limit is {limit}. Send smaller batches.")


_COUNT_BYTES: Final = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""The first byte of a msgpack array or map to the number of count bytes after it."""


def count_of(raw: msgspec.Raw) -> int:
    """Return the entry count in the header of a msgpack array or map; 0 for up to 15 entries."""
    head = memoryview(raw)
    width = _COUNT_BYTES.get(head[0], 0) if head else 0
    return int.from_bytes(head[1 : 1 + width], "big") if width else 0


def check_columns(owner: Any, *, last_series: int) -> None:
    """Reject inconsistent columns in any table of a batch or bundle."""
    strings = len(owner.strings)
    for shape in _SHAPES:
        table = getattr(owner, shape.name)
        if table == shape.empty:
            continue
        columns = msgspec.structs.astuple(table)
        rows = len(table)
        if list(map(len, columns)) != [rows * size for size in shape.sizes]:
            _refuse_lengths(shape, columns, rows)
        _check_positions(shape, columns, shape.texts, strings)
        _check_positions(shape, columns, shape.indices, last_series)


def check_buckets(batch: Batch) -> None:
    """Reject histograms whose bucket counts do not match the table of buckets."""
    buckets = sum(batch.histograms.column("buckets")) if len(batch.histograms) else 0
    if buckets != len(batch.buckets):
        raise SchemaError(f"the histograms claim {buckets} buckets, but the batch has {len(batch.buckets)}.")


class _Shape:
    """Precomputed facts about a table; looking them up for each batch would double the cost of the check."""

    def __init__(self, name: str, table: type[Table]) -> None:
        self.name = name
        self.empty = table()
        self.columns = list(table.COLUMNS)
        self.sizes = [array(column.code).itemsize for column in table.COLUMNS.values()]
        kinds = [column.kind for column in table.COLUMNS.values()]
        self.texts = [place for place, kind in enumerate(kinds) if kind in TEXT_KINDS]
        """The columns of positions in `strings`."""
        self.indices = [place for place, column in enumerate(self.columns) if column == "series"]
        """The columns of positions in the table of series."""


_SHAPES: Final = [_Shape(name, table) for name, table in TABLES.items()]
_UP_TO: Final = [bytes(range(largest + 1)) for largest in range(256)]


def _refuse_lengths(shape: _Shape, columns: tuple[bytes, ...], rows: int) -> None:
    for name, raw, size in zip(shape.columns, columns, shape.sizes, strict=True):
        if len(raw) != rows * size:
            raise SchemaError(f"column {shape.name}.{name} has {len(raw)} bytes, not {rows} rows.")


def _check_positions(shape: _Shape, columns: tuple[bytes, ...], places: list[int], largest: int) -> None:
    """Reject positions past the last entry."""
    if _are_small(b"".join([columns[place] for place in places]), largest):
        return
    for place in places:
        found = max(memoryview(columns[place]).cast("I"), default=0)
        if found > largest:
            raise SchemaError(
                f"column {shape.name}.{shape.columns[place]} points at entry {found}, but the last one is {largest}."
            )


def _are_small(raw: bytes, largest: int) -> bool:
    """Return whether all positions are at most `largest`; may return False wrongly if that is 256 or more.

    Small batches have few strings, and comparing bytes takes a tenth of the time of comparing numbers.
    """
    if not 0 <= largest < 256 or sys.byteorder == "big":
        return False
    higher = raw[1::4] + raw[2::4] + raw[3::4]
    return not raw[::4].translate(None, _UP_TO[largest]) and not higher.strip(b"\0")
