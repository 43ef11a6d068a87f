"""The subset of the protobuf wire format needed to write sink requests and read their responses."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from rl_insight.errors import SchemaError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""

double: Callable[[float], bytes] = struct.Struct("<d").pack
fixed64: Callable[[int], bytes] = struct.Struct("<Q").pack
_UINT64 = 2**64


def _long_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_SHORT = [_long_varint(number) for number in range(2048)]


def varint(number: int) -> bytes:
    """Encode a 64-bit integer as `int64`, `uint64`, `bool` or enum.

    >>> varint(300).hex(), len(varint(-1))
    ('ac02', 10)
    """
    if 0 <= number < 2048:
        return _SHORT[number]
    return _long_varint(number % _UINT64)


def zigzag(number: int) -> bytes:
    """Encode an integer as `sint32` or `sint64`."""
    return varint(2 * number if number >= 0 else -2 * number - 1)


def tag(number: int, wire_type: int) -> bytes:
    """Encode a field's tag, which precedes its value."""
    return varint(number << 3 | wire_type)


def sized(content: bytes) -> bytes:
    """Encode a length-delimited value: a string, bytes or an embedded message."""
    return varint(len(content)) + content


def text(value: str) -> bytes:
    """Encode a string with its length; characters that UTF-8 cannot represent are escaped."""
    return sized(value.encode("utf-8", "backslashreplace"))


def walk(message: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, and start and end of the value for each field in part of a message.

    Raises:
        SchemaError: the bytes are not a message.
    """
    while position < end:
        key, position = read_varint(message, position)
        wire_type = key & 7
        if wire_type == VARINT:
            begin, position = position, read_varint(message, position)[1]
        elif wire_type == BYTES:
            length, begin = read_varint(message, position)
            position = begin + length
        elif wire_type in {FIXED64, FIXED32}:
            begin, position = position, position + (8 if wire_type == FIXED64 else 4)
        else:
            raise SchemaError(f"not a protobuf message: wire type {wire_type}.")
        if position > end:
            raise SchemaError("not a protobuf message: truncated.")
        yield key >> 3, wire_type, begin, position


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field; doubles and fixed integers as raw bytes.

    Raises:
        SchemaError: the bytes are not a message.

    >>> list(fields(tag(1, VARINT) + varint(300) + tag(2, BYTES) + text("x")))
    [(1, 300), (2, b'x')]
    """
    for number, wire_type, begin, end in walk(message, 0, len(message)):
        yield number, read_varint(message, begin)[0] if wire_type == VARINT else message[begin:end]


def read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Return a number and the position after it.

    Raises:
        SchemaError: it extends beyond the message, or beyond 64 bits.
    """
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            break
        byte = message[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise SchemaError("not a protobuf message: truncated number.")
