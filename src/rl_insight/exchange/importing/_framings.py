"""Splits binary files into records: our own frames, TensorBoard's event files and W&B's offline runs.

Each framing yields the records of a stream with the offset after each. A record that is truncated by the end of the
file is counted as partial, and read once the file has grown. Damaged bytes are counted, and reading continues as far
as the framing allows.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from rl_insight.errors import SchemaError
from rl_insight.exchange.importing._cuts import CutBook
from rl_insight.exchange.importing._files import PORTION_BYTES, open_file
from rl_insight.exchange.importing.readers.base import Counts, Reader
from rl_insight.schema import Batch, frame, read_frames
from rl_insight.schema.framing import TruncatedFrameError

Framing = Callable[[BinaryIO, int, Counts], Iterator[tuple[bytes, int]]]
"""Called with a stream, its current offset, and where to count errors."""

MAX_RECORD_BYTES = 256 * 1024 * 1024

_MASK_DELTA = 0xA282EAD8
_EVENT_HEADER = struct.Struct("<QI")
_CHECKED_BYTES = 64 * 1024
"""Checksums in pure Python cost 0.1 µs per byte, so only the length of images and graphs is checked."""

WANDB_MAGIC = b":W&B\xe1\xbe"
"""The first bytes of a W&B offline run."""
_WANDB_HEADER_BYTES = 7
_BLOCK_BYTES = 32 * 1024
_CHUNK_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4


_FRAME_HEADER_BYTES = len(frame(b""))


def read_record_file(
    path: Path, framing: Framing, reader: Reader, start: int, book: CutBook
) -> Iterator[tuple[list[Batch], int]]:
    """Yield the batches of a file from an offset on, in portions, each with the offset after it.

    Like those of files of lines, portions end where the content determines, or where an earlier read ended.
    """
    context = reader.context
    context.counts.partial = 0  # the truncated record may be complete now
    cuts = frozenset(book.of(context.identity))
    records: list[bytes] = []
    size, offset = 0, start
    with open_file(path) as stream:
        stream.seek(start)
        for record, offset in framing(stream, start, context.counts):
            records.append(record)
            size += len(record)
            if size >= PORTION_BYTES or offset in cuts:
                yield list(reader.convert_records(records)), offset
                records, size = [], 0
        context.note_damage(stream.damage)
    if records:
        if reader.numbers_batches:
            book.add(context.identity, offset)
        yield list(reader.convert_records(records)), offset


def frame_records(stream: BinaryIO, offset: int, counts: Counts) -> Iterator[tuple[bytes, int]]:
    """Yield the payloads of our frames; reading stops at a damaged one."""
    try:
        for payload in read_frames(stream):
            offset += _FRAME_HEADER_BYTES + len(payload)
            yield payload, offset
    except SchemaError as error:
        if isinstance(error, TruncatedFrameError):
            counts.partial += 1
        else:
            counts.note_bad(error)


def event_records(stream: BinaryIO, offset: int, counts: Counts) -> Iterator[tuple[bytes, int]]:
    """Yield the records of a TensorBoard event file; reading stops at a damaged length."""
    while header := stream.read(_EVENT_HEADER.size):
        if len(header) < _EVENT_HEADER.size:
            counts.partial += 1
            return
        length, checksum = _EVENT_HEADER.unpack(header)
        if _masked(crc32c(header[:8])) != checksum or length > MAX_RECORD_BYTES:
            counts.note_bad(f"damaged: the record at byte {offset} has no valid length. The rest is skipped")
            return
        payload = stream.read(length)
        footer = stream.read(4)
        if len(footer) < 4:
            counts.partial += 1
            return
        begin, offset = offset, offset + _EVENT_HEADER.size + length + 4
        if length <= _CHECKED_BYTES and _masked(crc32c(payload)) != int.from_bytes(footer, "little"):
            counts.note_bad(f"damaged: the checksum of the record at byte {begin} does not match")
            continue
        yield payload, offset


def wandb_records(stream: BinaryIO, offset: int, counts: Counts) -> Iterator[tuple[bytes, int]]:
    """Yield the records of a W&B offline run, which are in blocks; after a damaged block the next one is read."""
    if offset == 0:
        offset += len(stream.read(_WANDB_HEADER_BYTES))
    parts: list[bytes] = []
    while True:
        room = _BLOCK_BYTES - offset % _BLOCK_BYTES
        if room < _CHUNK_HEADER.size:
            offset += len(stream.read(room))
        header = stream.read(_CHUNK_HEADER.size)
        if len(header) < _CHUNK_HEADER.size:
            counts.partial += bool(header or parts)
            return
        checksum, length, kind = _CHUNK_HEADER.unpack(header)
        data = stream.read(length)
        if len(data) < length:
            counts.partial += 1
            return
        begin, offset = offset, offset + _CHUNK_HEADER.size + length
        if not _is_sound(checksum, kind, data):
            counts.note_bad(f"damaged: the checksum of the record at byte {begin} does not match")
            parts = []
            offset += len(stream.read(-offset % _BLOCK_BYTES))
            continue
        if kind in {_FULL, _FIRST}:
            parts = [data]
        elif parts:  # else its beginning was damaged
            parts.append(data)
        if parts and kind in {_FULL, _LAST}:
            yield b"".join(parts), offset
            parts = []


def first_record(head: bytes, framing: Framing) -> bytes | None:
    """Return a file up to the end of its first record, which does not change as it grows; None if it is incomplete."""
    found = next(framing(io.BytesIO(head), 0, Counts()), None)
    return None if found is None else head[: found[1]]


def is_event_file(head: bytes) -> bool:
    """Return whether a file begins with a TensorBoard record.

    >>> is_event_file(b"{}")
    False
    """
    if len(head) < _EVENT_HEADER.size:
        return False
    length, checksum = _EVENT_HEADER.unpack_from(head)
    return bool(length <= MAX_RECORD_BYTES and _masked(crc32c(head[:8])) == checksum)


def _is_sound(checksum: int, kind: int, data: bytes) -> bool:
    """Return whether a chunk's checksum matches; older releases of W&B mask it."""
    found = zlib.crc32(data, zlib.crc32(bytes((kind,))))
    return checksum in {found, _masked(found)}


def _masked(checksum: int) -> int:
    return (((checksum >> 15) | (checksum << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the Castagnoli checksum, which TensorBoard uses and `zlib` lacks.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_table_entry(byte) for byte in range(256)]
