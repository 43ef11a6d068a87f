"""Frames: how batches are concatenated in files, spools and HTTP bodies.

A frame is ``b"RLI1"``, the payload's length and its CRC-32 (both unsigned 32-bit little-endian), then the payload. A
writer that crashes leaves at most one truncated frame, at the end; a reader reports it and keeps all frames before it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from rl_insight.errors import SchemaError

MAGIC = b"RLI1"
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
_HEADER = struct.Struct("<4sII")


class TruncatedFrameError(SchemaError):
    """The stream ends inside a frame."""


def frame(payload: bytes) -> bytes:
    """Return a payload as one frame.

    Raises:
        SchemaError: the payload is larger than readers accept; it would make the frames after it unreadable.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise SchemaError(f"too large: a frame holds at most {MAX_PAYLOAD_BYTES} bytes, not {len(payload)}.")
    return _HEADER.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload


def read_frames(stream: BinaryIO) -> Iterator[bytes]:
    """Yield each payload of a stream of frames.

    Raises:
        SchemaError: at the first truncated or corrupt frame; all frames before it have been yielded.
    """
    offset = 0
    while header := stream.read(_HEADER.size):
        if len(header) < _HEADER.size:
            raise TruncatedFrameError(f"truncated: the stream ends inside the frame header at byte {offset}.")
        magic, length, checksum = _HEADER.unpack(header)
        if magic != MAGIC:
            raise SchemaError(f"not a frame: expected {MAGIC!r} at byte {offset}, found {magic!r}.")
        if length > MAX_PAYLOAD_BYTES:
            raise SchemaError(f"too large: the frame at byte {offset} claims {length} bytes.")
        payload = stream.read(length)
        if len(payload) < length:
            raise TruncatedFrameError(f"truncated: the stream ends inside the frame at byte {offset}.")
        if zlib.crc32(payload) != checksum:
            raise SchemaError(f"corrupt: the checksum of the frame at byte {offset} does not match.")
        yield payload
        offset += _HEADER.size + length
