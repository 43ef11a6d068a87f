"""Bundles: batches of several processes in one set of columns, as a hub forwards them.

A bundle has the tables of a batch, with the rows of its members in sequence, and deduplicated strings. Each member
keeps the identity and sequence number of its batch, so receivers accept each batch once, in whatever bundle. Reading
a bundle of 32 batches takes a fifth of the time of reading them separately.

A bundle is sent in a frame, like a batch. Receivers that do not support bundles reject it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import msgspec

from rl_insight.errors import SchemaError, TooLargeError
from rl_insight.schema.batch import (
    MAX_ENTRIES,
    MAX_STRINGS,
    VERSION,
    Batch,
    Loss,
    Process,
    SenderHeader,
    Tables,
    check_buckets,
    check_columns,
    check_count,
    check_version,
    count_of,
    encode,
)
from rl_insight.schema.tables import TABLES, TEXT_KINDS, pack

MAX_MEMBERS: Final = 1_000
_MEMBER_FIELDS: Final = ("process", "sequence", "sent_ns", "final", "losses")


class BundleMember(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One batch of a bundle, without its rows."""

    process: Process
    sequence: int
    sent_ns: int
    rows: list[int]
    """How many rows of each table belong to it, in table order."""
    final: bool = False
    losses: list[Loss] = []


class BatchBundle(Tables, omit_defaults=True):
    """Several batches in one set of tables."""

    version: tuple[int, int]
    members: list[BundleMember]

    def batches(self) -> list[Batch]:
        """Return the members as batches that share one list of strings."""
        tables = {name: self._parts(place, name) for place, name in enumerate(TABLES) if len(getattr(self, name))}
        return [
            Batch(
                version=self.version,
                strings=self.strings,
                **{name: getattr(member, name) for name in _MEMBER_FIELDS},
                **{name: next(parts) for name, parts in tables.items()},
            )
            for member in self.members
        ]

    def _parts(self, place: int, name: str) -> Iterator[Any]:
        """Return each member's part of a table."""
        table = getattr(self, name)
        kind, rows = type(table), len(table)
        bounds = list(pairwise(accumulate((member.rows[place] for member in self.members), initial=0)))
        columns = []
        for column in kind.COLUMNS:
            raw = getattr(table, column)
            size = len(raw) // rows
            columns.append([raw[begin * size : end * size] for begin, end in bounds])
        return map(kind, *columns)


class _BundleHeader(msgspec.Struct):
    """The parts that are checked before a bundle is decoded."""

    version: tuple[int, int]
    members: msgspec.Raw = msgspec.Raw()
    strings: msgspec.Raw = msgspec.Raw()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(BatchBundle)
_header_decoder = msgspec.msgpack.Decoder(_BundleHeader)
_members_decoder = msgspec.msgpack.Decoder(list[SenderHeader])


def is_bundle(payload: bytes) -> bool:
    """Return whether a payload is a bundle: `members` follows `version`, where a batch has `process`."""
    return b"\xa7members" in payload[:24]


def bundle(batches: Sequence[Batch]) -> BatchBundle:
    """Combine batches.

    >>> from rl_insight.schema import BatchBuilder
    >>> process = Process(process_id="p", run_id="r", host="h", pid=1)
    >>> batches = [BatchBuilder().build(process, sequence=number, sent_ns=0) for number in (1, 2)]
    >>> [batch.sequence for batch in bundle(batches).batches()]
    [1, 2]
    """
    known: dict[str, int] = {}
    moved = [[0, *(known.setdefault(text, len(known) + 1) for text in batch.strings)] for batch in batches]
    tables = {name: _joined(name, batches, moved) for name in TABLES}
    members = [
        BundleMember(
            rows=[len(getattr(batch, name)) for name in TABLES],
            **{name: getattr(batch, name) for name in _MEMBER_FIELDS},
        )
        for batch in batches
    ]
    return BatchBundle(version=VERSION, members=members, strings=list(known), **tables)


def _joined(name: str, batches: Sequence[Batch], moved: list[list[int]]) -> Any:
    kind = TABLES[name]
    parts = [
        (getattr(batch, name), new) for batch, new in zip(batches, moved, strict=True) if len(getattr(batch, name))
    ]
    columns = {}
    for column_name, column in kind.COLUMNS.items():
        if column.kind in TEXT_KINDS:
            positions = [new[at] for table, new in parts for at in table.column(column_name).tolist()]
            columns[column_name] = pack(column.code, positions)
        else:
            columns[column_name] = b"".join(getattr(table, column_name) for table, _ in parts)
    return kind(**columns)


def encode_bundle(batches: Sequence[Batch]) -> bytes:
    """Encode batches as one payload; a single batch is not bundled."""
    return encode(batches[0]) if len(batches) == 1 else _encoder.encode(bundle(batches))


def decode_bundle(payload: bytes) -> BatchBundle:
    """Decode and validate a bundle.

    Raises:
        UnsupportedVersionError: it has another major version.
        TooLargeError: it has too many members, strings, losses or labels.
        SchemaError: the bytes are not a bundle, or its columns are inconsistent.
    """
    try:
        header = _header_decoder.decode(payload)
        check_version(header.version)
        check_count("members", header.members, MAX_MEMBERS)
        check_count("strings", header.strings, MAX_STRINGS)
        entries = 0
        for member in _members_decoder.decode(header.members):
            entries += count_of(member.losses) + count_of(member.labels)
        if entries > MAX_ENTRIES:
            raise TooLargeError(f"the bundle has {entries} losses and labels, but the limit is {MAX_ENTRIES}.")
        found = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SchemaError(f"not a bundle: {str(error).rstrip('.')}.") from error
    _check(found)
    return found


def _check(found: BatchBundle) -> None:
    if not found.members:
        raise SchemaError("not a bundle: it has no members.")
    for member in found.members:
        if len(member.rows) != len(TABLES) or min(member.rows) < 0:
            raise SchemaError(f"a member claims {member.rows} rows, but there are {len(TABLES)} tables.")
    for place, name in enumerate(TABLES):
        rows = sum(member.rows[place] for member in found.members)
        if rows != len(getattr(found, name)):
            raise SchemaError(
                f"the members claim {rows} rows of {name}, but the bundle has {len(getattr(found, name))}."
            )
    # Series positions count within a member. If all members have the same number of series, one check covers them all.
    series = {member.rows[_SERIES] for member in found.members}
    check_columns(found, last_series=max(series) - 1)
    if len(series) > 1 or len(found.histograms):
        for batch in found.batches():
            check_columns(batch, last_series=len(batch.series) - 1)
            check_buckets(batch)
    elif len(found.buckets):
        raise SchemaError(f"the bundle has {len(found.buckets)} buckets, but no histograms.")


_SERIES: Final = list(TABLES).index("series")
