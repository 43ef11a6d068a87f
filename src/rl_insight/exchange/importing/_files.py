"""Reads files that may be huge, compressed, truncated, or still growing.

A file is read in portions whose ends depend only on its content, and each portion becomes batches with fixed sequence
numbers. The same file therefore always yields the same batches, and a store recognizes those it has. If a file ended
while it was still growing, the end of the last portion is a *cut*: it is recorded (see
`rl_insight.exchange.importing._cuts`), and the next read ends a portion there too.
"""

from __future__ import annotations

import hashlib
import io
import re
import zlib
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import cramjam
import msgspec

PORTION_BYTES = 1024 * 1024
MAX_LINE_BYTES = 64 * 1024 * 1024
HEAD_BYTES = 64 * 1024
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_WITH_HEADER = 31
_BLOCK_BYTES = 16 * 1024
"""Bytes uncompressed at once: at most this much content before the damage in a file is lost."""


class Portion(msgspec.Struct, frozen=True):
    """Some complete lines of a file."""

    data: bytes
    end: int
    """The offset after the last line, in the uncompressed file."""
    is_last: bool = False
    """The file ended here: later additions are a separate portion."""
    is_partial: bool = False
    """The data is a last line without a newline, which may be incomplete."""
    skipped: int = 0
    """Lines left out because they are too long."""


class Content(io.BufferedReader):
    """The uncompressed content of a file; that of a damaged compressed file ends where the damage begins."""

    @property
    def damage(self) -> str | None:
        """What is wrong with the compressed file, once everything before that has been read."""
        return self.raw.damage if isinstance(self.raw, _Uncompressed) else None


def open_file(path: Path) -> Content:
    """Open a file for reading, uncompressed; the content of a Zstandard file is held in memory."""
    magic = _magic(path)
    if magic == _ZSTD_MAGIC:
        return Content(_Uncompressed(_zstd_blocks(path), f"the zstd data of {path}"))
    if magic.startswith(_GZIP_MAGIC):
        return Content(_Uncompressed(_gzip_blocks(path), f"the gzip data of {path}"))
    return Content(io.FileIO(path))


class _DamageError(Exception):
    """A compressed file cannot be read any further."""


_ENDS_EARLY = "ends too early, after {position:,} bytes of content. Importing the complete file adds the rest"
_IS_DAMAGED = (
    "is damaged: reading failed after {position:,} bytes of content, and records before that may be wrong too. "
    "Import an intact copy into a new run"
)


class _Uncompressed(io.RawIOBase):
    """Blocks of uncompressed content as a file that can be read forward."""

    def __init__(self, blocks: Generator[bytes, None, None], name: str) -> None:
        self._blocks = blocks
        self._name = name
        self._rest = memoryview(b"")
        self._position = 0
        self.damage: str | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence != io.SEEK_SET or offset < self._position:
            raise io.UnsupportedOperation("a compressed file is read forward")
        while self._position < offset and self._fill():
            self._take(offset - self._position)
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        if not self._fill():
            return 0
        data = self._take(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _fill(self) -> bool:
        """Return whether there is content left."""
        try:
            while not self._rest and self.damage is None:
                self._rest = memoryview(next(self._blocks))
        except StopIteration:
            return False
        except _DamageError as error:
            self.damage = f"{self._name} {str(error).format(position=self._position)}"
        return bool(self._rest)

    def _take(self, size: int) -> memoryview:
        data, self._rest = self._rest[:size], self._rest[size:]
        self._position += len(data)
        return data

    def close(self) -> None:
        self._blocks.close()
        super().close()


def _gzip_blocks(path: Path) -> Generator[bytes, None, None]:
    """Yield the content of a gzip file, which may consist of several members."""
    with path.open("rb") as stream:
        while packed := stream.read(_BLOCK_BYTES).lstrip(b"\0"):  # members may be padded with zeros
            while packed:
                member = zlib.decompressobj(_GZIP_WITH_HEADER)
                while not member.eof:
                    if not packed:
                        packed = stream.read(_BLOCK_BYTES)
                    yield _unpacked(member, packed)
                    packed = member.unconsumed_tail
                packed = member.unused_data.lstrip(b"\0")


def _unpacked(member: zlib._Decompress, packed: bytes) -> bytes:
    """Return the next content of a gzip member."""
    try:
        found = member.decompress(packed, _BLOCK_BYTES)
    except zlib.error as error:
        raise _DamageError(_IS_DAMAGED) from error
    if not packed and not found and not member.eof:
        raise _DamageError(_ENDS_EARLY)
    return found


def _zstd_blocks(path: Path) -> Generator[bytes, None, None]:
    content = cramjam.Buffer()
    damage: Exception | None = None
    try:
        cramjam.zstd.decompress_into(path.read_bytes(), content)
    except cramjam.DecompressionError as error:
        damage = error
    content.seek(0)
    yield content.read()
    if damage is not None:
        raise _DamageError(_ENDS_EARLY if "incomplete" in str(damage) else _IS_DAMAGED) from damage


def is_compressed(path: Path) -> bool:
    """Return whether a file's content is gzip or Zstandard."""
    magic = _magic(path)
    return magic == _ZSTD_MAGIC or magic.startswith(_GZIP_MAGIC)


def _magic(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(len(_ZSTD_MAGIC))


def read_head(path: Path, size: int = HEAD_BYTES) -> bytes:
    """Return the first bytes of a file, uncompressed."""
    with open_file(path) as stream:
        return stream.read(size)


def damage_of(path: Path) -> str | None:
    """Return what is wrong with a compressed file; None if it is complete, or not compressed."""
    with open_file(path) as stream:
        while is_compressed(path) and stream.read(PORTION_BYTES):
            pass
        return stream.damage


def uncompressed_name(name: str) -> str:
    """Return the name that a file has without compression.

    >>> uncompressed_name("a.jsonl.zst"), uncompressed_name("a.jsonl.1")
    ('a.jsonl', 'a.jsonl.1')
    """
    return name.removesuffix(".gz").removesuffix(".zst")


_ROTATION = re.compile(r"\.\d+$")
_METADATA = re.compile(rb'"ph"\s*:\s*"M"|"type"\s*:\s*"process"')


def identity_of(name: str, head: bytes, *, by_line: bool) -> str | None:
    r"""Return a short name for a file that stays the same when the file grows, moves or is rotated.

    It is made from the file's name and its first distinctive line; metadata lines of traces, and records of processes,
    are the same in many files. None if that line is not complete yet.

    >>> first = identity_of("a.jsonl", b'{"a":1}\n', by_line=True)
    >>> first == identity_of("a.jsonl.1", b'{"a":1}\n{"a":2}\n', by_line=True)
    True
    """
    kept: bytes | None = head
    if by_line:
        *lines, rest = head.split(b"\n")
        kept = next((line for line in lines if line.strip() and not _METADATA.search(line)), None)
        if kept is None and len(head) >= HEAD_BYTES:
            kept = rest
    if kept is None:
        return None
    plain = _ROTATION.sub("", uncompressed_name(name))
    return hashlib.blake2b(plain.encode("utf-8", "surrogateescape") + b"\n" + kept, digest_size=6).hexdigest()


def portions(stream: BinaryIO, start: int = 0, cuts: Sequence[int] = ()) -> Iterator[Portion]:
    """Yield the lines of a stream from its current offset `start` on, in portions of about `PORTION_BYTES`.

    A portion also ends at each of the `cuts`, the sorted offsets at which earlier reads ended.
    """
    offset = start
    while True:
        limit = _next_cut(cuts, offset)
        data = stream.read(PORTION_BYTES if limit is None else min(PORTION_BYTES, limit - offset))
        if not data:
            return
        skipped = 0
        end = offset + len(data)
        if not data.endswith(b"\n") and end != limit:
            rest, consumed = _rest_of_line(stream)
            end += consumed
            if rest is None:
                data, skipped = data[: data.rfind(b"\n") + 1], 1
            else:
                data += rest
        offset = end
        is_short = len(data) < PORTION_BYTES and limit is None and not skipped
        if data.endswith(b"\n") or skipped or end == limit:
            yield Portion(data, end, is_last=is_short, skipped=skipped)
            continue
        complete = data.rfind(b"\n") + 1
        if complete:
            yield Portion(data[:complete], end - len(data) + complete, is_last=True)
        yield Portion(data[complete:], end, is_last=True, is_partial=True)


def _next_cut(cuts: Sequence[int], offset: int) -> int | None:
    place = bisect_right(cuts, offset)
    return cuts[place] if place < len(cuts) else None


def _rest_of_line(stream: BinaryIO) -> tuple[bytes | None, int]:
    """Return the rest of a line and how many bytes were read; None for a line that is too long to keep."""
    rest = stream.readline(MAX_LINE_BYTES)
    consumed = len(rest)
    if len(rest) < MAX_LINE_BYTES or rest.endswith(b"\n"):
        return rest, consumed
    while True:
        more = stream.readline(PORTION_BYTES)
        consumed += len(more)
        if not more or more.endswith(b"\n"):
            return None, consumed
